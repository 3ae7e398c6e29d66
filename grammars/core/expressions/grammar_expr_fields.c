/* See grammar_expr_fields.h. */

#include "grammar_expr_fields.h"
#include <structmember.h>

INTERNAL Shape shapes[SHAPES] = {
    [LITERAL] = {"Literal", {"data"}},
    [BYTES] = {"ByteClass", {"mask", "plain"}},
    [CHARS] = {"CharClass", {"chars"}},
    [WORDS] = {"LiteralSet", {"words"}},
    [SEQ] = {"Seq", {"items"}},
    [ALT] = {"Alt", {"items"}},
    [REPEAT] = {"Repeat", {"item", "minimum", "maximum"}},
    [JOINED] = {"SeparatedList", {"parts", "extra", "separator", "minimum", "maximum", "opening", "closing", "ordered"}},
    [GRAPH] = {"AutomatonExpr", {"edges", "accepting"}},
    [CALL_RULE] = {"RuleCall", {"rule"}},
    [OTHER_THAN] = {"NameComplement", {"names", "plain", "text", "leaving", "spelled", "mark"}},
    [COPIED] = {"CopiedText", {"pieces"}},
    [PART] = {"ListMember", {"item", "required"}},
    [ANCHOR] = {"RegexAnchor", {"start", "position"}},
};

static int learn_field(Shape *s, int i) {
    PyObject *slot = PyObject_GetAttrString((PyObject *)s->type, s->fields[i]);
    if (!slot) return -1;
    int known = Py_IS_TYPE(slot, &PyMemberDescr_Type);
    if (known) s->offset[i] = ((PyMemberDescrObject *)slot)->d_member->offset;
    else PyErr_Format(PyExc_TypeError, "%s.%s is not a slot", s->name, s->fields[i]);
    Py_DECREF(slot);
    return known ? 0 : -1;
}

static int learn_shape(PyObject *module, Shape *s) {
    PyObject *type = PyObject_GetAttrString(module, s->name);
    if (!type) return -1;
    if (!PyType_Check(type)) {
        Py_DECREF(type);
        PyErr_Format(PyExc_TypeError, "%s is not a class", s->name);
        return -1;
    }
    Py_XDECREF(s->type);
    s->type = (PyTypeObject *)type;
    for (int i = 0; s->fields[i]; i++)
        if (learn_field(s, i)) return -1;
    return 0;
}

/* The classes of a module of expressions. */
INTERNAL int learn_shapes(PyObject *module) {
    for (int i = 0; i < SHAPES; i++)
        if (learn_shape(module, &shapes[i])) return -1;
    return 0;
}

/* What an expression is, with all its fields there; -1 with TypeError for what cannot be lowered. */
INTERNAL int shape_of(PyObject *expr) {
    for (int shape = 0; shape < PART; shape++)
        if (Py_IS_TYPE(expr, shapes[shape].type)) {
            for (int i = 0; shapes[shape].fields[i]; i++)
                if (!FIELD(expr, shape, i)) goto unknown;
            return shape;
        }
unknown:
    PyErr_Format(PyExc_TypeError, "%.200s cannot be lowered", Py_TYPE(expr)->tp_name);
    return -1;
}

/* A bound of int32; None is -1. */
INTERNAL int as_bound(PyObject *number, int32_t *found) {
    *found = -1;
    if (number == Py_None) return 0;
    long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value != (int32_t)value) {
        PyErr_SetString(PyExc_OverflowError, "a bound does not fit 32 bits");
        return -1;
    }
    *found = (int32_t)value;
    return 0;
}

/* The length of a tuple or list; -1 with TypeError for anything else. */
INTERNAL Py_ssize_t row_size(PyObject *items) {
    if (PyTuple_Check(items) || PyList_Check(items)) return PySequence_Fast_GET_SIZE(items);
    PyErr_Format(PyExc_TypeError, "%.200s where a tuple belongs", Py_TYPE(items)->tp_name);
    return -1;
}

INTERNAL PyObject *item_at(PyObject *items, Py_ssize_t i) { return PySequence_Fast_GET_ITEM(items, i); }
