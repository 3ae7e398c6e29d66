"""The nodes of a network: what a thread (node, count, frame) of the automaton does at each kind.

Nodes are rows of five int32 (kind, a, b, c, d):

    BYTE   class a, next b, c: start of plain string text (0 no, 1 unbounded, 2 bounded by loop d)
    SPLIT  edges[a : a + b]
    CALL   rule a, return to b           pushes a frame
    ENTER  loop a, leave to b            pushes a frame, count starts at 0
    LOOP   body a, least b, most c (-1: no bound); leaving pops the frame
    NEXT   loop a: one more iteration, count saturates at the least where there is no most
    RETURN pops a frame; from the bottom frame: the text may end
    PICK   table at edges[a], b parts, separator c: any part that is not used yet, or the extra
    SEEN   list a, part b (as many as there are parts: the extra): closes or goes on; closing pops the frame
    COPY   text a: the next byte of a piece; where a piece may end, the frame is popped as well. The count is the state
           of the text's automaton; it is the whole of a rule

`d` is the loop whose iterations the thread's count counts at this node (-1: none). Where it is a PICK node the count
is the number of a `PartSubset` (`parts.py`) instead; a list is entered as a loop is, subset 0 is empty for every list.
"""

BYTE, SPLIT, CALL, ENTER, LOOP, NEXT, RETURN, PICK, SEEN, COPY = range(10)
FIELDS = 5
CLASS_BYTES = 32
UNBUILT = -1
TABLE = 4
