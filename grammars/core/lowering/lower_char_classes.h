/* Characters as products of ranges of UTF-8 bytes, which `charset.utf8_sequences` says, and their trie: what goes on in
 * the same way is one node, for one class as for the next. */
#ifndef SGL_CORE_LOWERING_LOWER_CHAR_CLASSES_H
#define SGL_CORE_LOWERING_LOWER_CHAR_CLASSES_H

#include "../base/grammar_core_common.h"
#include "rule_lowering.h"

INTERNAL int32_t lower_chars(Lowering *l, PyObject *expr, int32_t after, Scope scope);

#endif
