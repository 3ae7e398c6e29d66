/* See lark_parser.h. */

#include "lark_parser.h"
#include "../base/python_call_arguments.h"
#include "../expressions/grammar_exprs.h"
#include "../expressions/grammar_expr_fields.h"
#include "../expressions/gil_yield.h"

enum { NOT_PLAIN = -2, MOST_NESTED = 100 };
typedef enum { LARK_END, LARK_NAME, LARK_STRING, LARK_REGEX, LARK_NUMBER, LARK_SIGN, LARK_ALIAS, LARK_OTHER } TokenKind;

typedef struct {
    PyObject *text;
    const void *data;
    int form; /* of the text's characters */
    Py_ssize_t length;
    TokenKind kind; /* of the next token, which is not read yet, and is from `at` to `end` */
    Py_ssize_t at, end;
    Py_UCS4 sign;
    int fresh, nested; /* whether it is the first on its line; open brackets */
    PyObject *atoms, *resolve, *any_of, *gap; /* what is known by its spelling, and who knows the rest */
} Lark;

static Py_UCS4 lark_char(const Lark *k, Py_ssize_t at) { return at < k->length ? PyUnicode_READ(k->form, k->data, at) : 0; }
static int is_letter(Py_UCS4 c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static int is_digit(Py_UCS4 c) { return c >= '0' && c <= '9'; }
static int is_blank(Py_UCS4 c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static Py_ssize_t after_blanks(const Lark *k, Py_ssize_t at, int *fresh) {
    while (at < k->length) {
        const Py_UCS4 c = lark_char(k, at);
        if (is_blank(c)) *fresh |= c == '\n', at++;
        else if (c == '#' || (c == '/' && lark_char(k, at + 1) == '/'))
            while (at < k->length && lark_char(k, at) != '\n') at++;
        else break;
    }
    return at;
}

static Py_ssize_t after_word(const Lark *k, Py_ssize_t at) {
    while (is_letter(lark_char(k, at)) || is_digit(lark_char(k, at))) at++;
    return at;
}

static Py_ssize_t after_name(const Lark *k, Py_ssize_t at) {
    for (;;) {
        at = after_word(k, at);
        if (lark_char(k, at) != '-' || after_word(k, at + 1) == at + 1) return at;
        at++;
    }
}

/* After the next `closing` on this line that no backslash escapes; -1 where there is none. */
static Py_ssize_t after_closing(const Lark *k, Py_ssize_t at, Py_UCS4 closing) {
    for (; at < k->length && lark_char(k, at) != '\n'; at++) {
        if (lark_char(k, at) == closing) return at + 1;
        if (lark_char(k, at) == '\\' && lark_char(k, ++at) == '\n') return -1;
    }
    return -1;
}

static int is_flag(Py_UCS4 c) { return c && c < 128 && strchr("imslux", (int)c) != NULL; }

static void token_of(Lark *k, TokenKind kind, Py_ssize_t end) {
    k->kind = end < 0 ? LARK_OTHER : kind;
    k->end = end;
}

static void read_string(Lark *k) {
    Py_ssize_t end = after_closing(k, k->at + 1, '"');
    token_of(k, LARK_STRING, end > 0 && lark_char(k, end) == 'i' ? end + 1 : end);
}

static void read_regex(Lark *k) {
    Py_ssize_t end = after_closing(k, k->at + 1, '/');
    while (end > 0 && is_flag(lark_char(k, end))) end++;
    token_of(k, LARK_REGEX, end);
}

static void read_sign(Lark *k, Py_UCS4 c) {
    const Py_UCS4 second = lark_char(k, k->at + 1);
    const int plain = c && c < 128 && strchr(":|()[]?*+!.", (int)c) && !(c == '.' && second == '.') && !(c == ':' && second == ':') &&
                      !(c == '+' && is_digit(second));
    k->sign = c;
    if (c == '-' && second == '>') token_of(k, LARK_ALIAS, k->at + 2);
    else token_of(k, LARK_SIGN, plain ? k->at + 1 : -1);
}

/* Read the token at or after a place; what is not plain is LARK_OTHER. */
static void lark_next(Lark *k, Py_ssize_t from) {
    k->fresh = from == 0;
    k->at = after_blanks(k, from, &k->fresh);
    const Py_UCS4 c = lark_char(k, k->at);
    Py_ssize_t digits = k->at;
    k->sign = 0;
    if (k->at >= k->length) token_of(k, LARK_END, k->at);
    else if (is_letter(c)) token_of(k, LARK_NAME, after_name(k, k->at));
    else if (c == '"') read_string(k);
    else if (c == '/') read_regex(k);
    else if (is_digit(c)) {
        while (is_digit(lark_char(k, digits))) digits++;
        token_of(k, LARK_NUMBER, digits);
    } else read_sign(k, c);
}

static int takes_sign(Lark *k, Py_UCS4 sign) {
    if (k->kind != LARK_SIGN || k->sign != sign) return 0;
    lark_next(k, k->end);
    return 1;
}

static int body_ends(const Lark *k) { return !k->nested && k->fresh; }

/* Errors are found once more, where they are reported. */
static PyObject *not_plain(void) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    return NULL;
}

/* The expression of something at a place that is spelled so. */
static PyObject *lark_known(const Lark *k, PyObject *spelled, Py_ssize_t at) {
    PyObject *found = PyDict_GetItemWithError(k->atoms, spelled);
    if (found || PyErr_Occurred()) return Py_XNewRef(found);
    PyObject *place = PyLong_FromSsize_t(at);
    if (place) found = PyObject_CallFunctionObjArgs(k->resolve, spelled, place, NULL);
    if (found && PyDict_SetItem(k->atoms, spelled, found)) Py_CLEAR(found);
    Py_XDECREF(place);
    return found;
}

/* The expression of a name, a string or a regex: a new reference as everywhere below, NULL where it is not plain. What
 * comes after it is read first: before a range or a template nothing may be taken for known. */
static PyObject *lark_atom(Lark *k) {
    const Py_ssize_t at = k->at, end = k->end;
    lark_next(k, end);
    if (k->kind == LARK_OTHER && (k->sign == '.' || k->sign == '{')) return NULL;
    PyObject *spelled = PyUnicode_Substring(k->text, at, end);
    PyObject *found = spelled ? lark_known(k, spelled, at) : NULL;
    Py_XDECREF(spelled);
    return found;
}

static PyObject *lark_expansions(Lark *k);

static PyObject *lark_group(Lark *k) {
    const Py_UCS4 opening = k->sign;
    if (k->nested >= MOST_NESTED) return NULL;
    k->nested++;
    lark_next(k, k->end);
    PyObject *inner = lark_expansions(k);
    k->nested--;
    if (!inner || !takes_sign(k, opening == '(' ? ')' : ']')) return Py_XDECREF(inner), NULL;
    if (opening == '(') return inner;
    PyObject *const both[] = {inner, nothing_read};
    PyObject *found = alt_of(both, 2);
    Py_DECREF(inner);
    return found;
}

/* An item as often as the sign after it says; takes the item over. */
static PyObject *lark_repeated(Lark *k, PyObject *item) {
    if (!item || body_ends(k) || k->kind != LARK_SIGN || (k->sign != '?' && k->sign != '*' && k->sign != '+')) return item;
    PyObject *least = PyLong_FromLong(k->sign == '+'), *most = k->sign == '?' ? PyLong_FromLong(1) : Py_NewRef(Py_None);
    PyObject *found = least && most ? PyObject_CallFunctionObjArgs(plain_repeat, item, least, most, NULL) : NULL;
    Py_XDECREF(least);
    Py_XDECREF(most);
    Py_DECREF(item);
    lark_next(k, k->end);
    return found;
}

/* Whether an item begins here: 1, 0, or NOT_PLAIN. */
static int item_begins(const Lark *k) {
    if (k->kind == LARK_END || body_ends(k) || k->kind == LARK_ALIAS) return 0;
    if (k->kind == LARK_NAME || k->kind == LARK_STRING || k->kind == LARK_REGEX) return 1;
    if (k->kind != LARK_SIGN) return NOT_PLAIN;
    if (k->sign == '(' || k->sign == '[') return 1;
    return k->sign == '|' || k->sign == ')' || k->sign == ']' ? 0 : NOT_PLAIN;
}

static int take_alias(Lark *k) {
    if (k->kind != LARK_ALIAS) return 0;
    lark_next(k, k->end);
    if (k->kind != LARK_NAME) return NOT_PLAIN;
    lark_next(k, k->end);
    return 0;
}

static PyObject *lark_expansion(Lark *k) {
    yield_gil();
    PyObject *items = PyList_New(0), *found = NULL;
    int more = items ? item_begins(k) : NOT_PLAIN;
    while (more == 1) {
        PyObject *item = lark_repeated(k, k->kind == LARK_SIGN ? lark_group(k) : lark_atom(k));
        more = item && !PyList_Append(items, item) ? item_begins(k) : NOT_PLAIN;
        Py_XDECREF(item);
    }
    if (!more && !take_alias(k)) found = PyList_GET_SIZE(items) == 1 ? Py_NewRef(PyList_GET_ITEM(items, 0)) : row_made(SEQ, items);
    Py_XDECREF(items);
    return found;
}

enum { MANY_ALTERNATIVES = 8 }; /* from which `any_of` makes a trie of literals */

static PyObject *lark_any_of(const Lark *k, PyObject *alternatives) {
    if (PyList_GET_SIZE(alternatives) < MANY_ALTERNATIVES) return row_made(ALT, alternatives);
    return PyObject_CallFunctionObjArgs(k->any_of, alternatives, k->gap, NULL);
}

static PyObject *lark_expansions(Lark *k) {
    PyObject *alternatives = PyList_New(0), *found = NULL;
    int more = alternatives != NULL;
    while (more) {
        PyObject *alternative = lark_expansion(k);
        const int code = alternative ? PyList_Append(alternatives, alternative) : -1;
        Py_XDECREF(alternative);
        if (code) return Py_DECREF(alternatives), NULL;
        more = takes_sign(k, '|');
    }
    if (alternatives && (k->kind != LARK_OTHER || body_ends(k))) found = lark_any_of(k, alternatives);
    Py_XDECREF(alternatives);
    return found;
}

static int is_lower_name(const Lark *k, Py_ssize_t at, Py_ssize_t end) {
    while (at < end && lark_char(k, at) == '_') at++;
    const Py_UCS4 c = at < end ? lark_char(k, at) : 0;
    return c >= 'a' && c <= 'z';
}

/* The name that a plain statement defines: its place, with the text before its body read; NOT_PLAIN for others. */
static Py_ssize_t lark_head(Lark *k, Py_ssize_t *end) {
    while (k->kind == LARK_SIGN && (k->sign == '?' || k->sign == '!')) lark_next(k, k->end);
    const Py_ssize_t at = k->at;
    if (k->kind != LARK_NAME) return NOT_PLAIN;
    lark_next(k, *end = k->end);
    if (takes_sign(k, '.')) {
        if (k->kind != LARK_NUMBER) return NOT_PLAIN;
        lark_next(k, k->end);
    }
    return takes_sign(k, ':') ? at : NOT_PLAIN;
}

typedef struct { PyObject *of_rules, *of_terminals, *define, *gap; } LarkScopes;

/* Read one statement and define what it says: 0, NOT_PLAIN, or -1 with an exception. */
static int lark_statement(Lark *k, const LarkScopes *scopes) {
    Py_ssize_t end = 0, at = lark_head(k, &end);
    if (at < 0) return NOT_PLAIN;
    const int in_rule = is_lower_name(k, at, end);
    k->nested = 0;
    k->atoms = in_rule ? scopes->of_rules : scopes->of_terminals;
    k->resolve = PyTuple_GET_ITEM(scopes->define, in_rule);
    k->gap = in_rule ? scopes->gap : nothing_read;
    PyObject *body = lark_expansions(k);
    if (!body || (!k->fresh && k->kind != LARK_END)) {
        Py_XDECREF(body);
        return not_plain(), PyErr_Occurred() ? -1 : NOT_PLAIN;
    }
    PyObject *name = PyUnicode_Substring(k->text, at, end);
    PyObject *done = name ? PyObject_CallFunction(PyTuple_GET_ITEM(scopes->define, 2), "OnO", name, at, body) : NULL;
    Py_XDECREF(name);
    Py_DECREF(body);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* read_lark(text, at, (atoms of terminals, of rules), (resolve in terminals, in rules, define), any_of, gap): read plain
 * statements from a place on; where the first that is not plain begins. */
INTERNAL PyObject *py_read_lark(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (check_count(count, 6)) return NULL;
    if (!PyUnicode_Check(args[0]) || !PyTuple_Check(args[2]) || !PyTuple_Check(args[3]))
        return PyErr_SetString(PyExc_TypeError, "a text and two tuples belong here"), NULL;
    Lark k = {.text = args[0], .any_of = args[4], .data = PyUnicode_DATA(args[0]), .form = PyUnicode_KIND(args[0])};
    const LarkScopes scopes = {PyTuple_GET_ITEM(args[2], 1), PyTuple_GET_ITEM(args[2], 0), args[3], args[5]};
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at < 0) return NULL;
    k.length = PyUnicode_GET_LENGTH(args[0]);
    lark_next(&k, at);
    for (int code = 0; k.kind != LARK_END && !code;) {
        at = k.at;
        code = lark_statement(&k, &scopes);
        if (code == -1) return NULL;
        if (code == NOT_PLAIN) return PyLong_FromSsize_t(at);
    }
    return PyLong_FromSsize_t(k.at);
}
