/* The plain statements of Lark's syntax, which most grammars mostly have: names, strings, regexes, groups, counts of one
 * sign and aliases. `lark_syntax.py` and `lark_rule_bodies.py` read all others, and say what all of them mean. Whatever is
 * not plain here, or has any error, ends the reading at the start of its statement, so that all errors are found
 * there. */
#ifndef SGL_CORE_PYTHON_LARK_PARSER_H
#define SGL_CORE_PYTHON_LARK_PARSER_H

#include "../base/grammar_core_common.h"

INTERNAL PyObject *py_read_lark(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
