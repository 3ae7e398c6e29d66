"""Operations of a sequence, and the protocol that all of them share."""
