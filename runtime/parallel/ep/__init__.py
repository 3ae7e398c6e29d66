"""Expert parallelism: placement of experts, their balance and migration."""
