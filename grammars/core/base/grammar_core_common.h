/* What every file of the core needs. */
#ifndef SGL_CORE_BASE_GRAMMAR_CORE_COMMON_H
#define SGL_CORE_BASE_GRAMMAR_CORE_COMMON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* API: a function that Python calls through ctypes. */
#ifdef _WIN32
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

/* INTERNAL: a function or variable that a header declares and one file defines. The build compiles all files as one translation
 * unit (grammar_core_unity.c), where it is static, so that the compiler inlines it. Compiled by itself, a file exports it to the others.
 * INTERNAL_DATA: the declaration of such a variable. */
#ifdef SGL_ALL
#define INTERNAL static
#define INTERNAL_DATA static
#elif defined(_WIN32)
#define INTERNAL
#define INTERNAL_DATA extern
#else
#define INTERNAL __attribute__((visibility("hidden")))
#define INTERNAL_DATA extern INTERNAL
#endif

#endif
