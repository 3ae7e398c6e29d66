"""The numbers with a special meaning in the tables on a device."""

LANES = 128  # tokens of one block

DEAD, UNKNOWN = -1, -2  # targets: not allowed; not on the device yet
FREE = -1  # the state of a slot without a grammar
ENDED = 0  # the state after an end-of-sequence token, and its row

NO_ROW, CLAIMED = -2, -1  # rows of states: none yet; one is being given
NO_MASK = -1  # the row of a slot without a grammar
BLOCKED = 1  # the row that allows nothing, of a slot that waits for the host
FIXED_ROWS = 2

NO_TOKEN = -1  # a slot that stays where it is
NO_PLACE, END_PLACE = -1, -2  # places of tokens without text, and of those that end a sequence

SEEN, UNSEEN, REFUSED = 0, 1, 2  # misses: none; the host must step in; the token is not allowed
