"""What people write again and again above `gen`, each a program that one can read and copy."""
