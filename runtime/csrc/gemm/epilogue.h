/* What the products with whole numbers share: memory for the rows of x that become whole numbers, and the end of a sum. */

static pthread_key_t narrow_key; /* made when the module is; frees a thread's memory when the thread ends */

/* Memory of this thread for the narrowed rows of one product. */
static void *narrow_space(size_t bytes) {
    static _Thread_local void *space;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(space);
        space = malloc(size = bytes + bytes / 2);
        if (!space) abort(); /* a step cannot go on, and a wrong number must not come out */
        pthread_setspecific(narrow_key, space);
    }
    return space;
}

/* The same from where a line of the cache begins. */
static void *aligned_space(size_t bytes) { return (void *)(((uintptr_t)narrow_space(bytes + 64) + 63) & ~(uintptr_t)63); }

#define ADDED(type, suffix, from) \
    _Pragma("omp simd") for (long o = 0; o < count; o++) sums[o] += to_float_##suffix(((const type *)(from))[o]);

/* y from the finished products of a row in one block: bias and residual are added in float32. wide: x is float32. */
INLINE void end_row(const Product *job, const int wide, long row, long output, long count, float *sums) {
    const Weight *weight = job->weight;
    const long place = row * job->width + output;
    if (weight->bias && wide) { ADDED(float, f32, (const float *)weight->bias + output) }
    if (weight->bias && !wide) { ADDED(bfloat16, bf16, (const bfloat16 *)weight->bias + output) }
    if (job->residual && wide) { ADDED(float, f32, (const float *)job->residual + place) }
    if (job->residual && !wide) { ADDED(bfloat16, bf16, (const bfloat16 *)job->residual + place) }
    if (wide)
        memcpy((float *)job->y + place, sums, count * sizeof(float));
    else if (job->wide)
#pragma omp simd
        for (long o = 0; o < count; o++) ((float *)job->y)[place + o] = to_float_bf16(from_float_bf16(sums[o]));
    else
#pragma omp simd
        for (long o = 0; o < count; o++) ((bfloat16 *)job->y)[place + o] = from_float_bf16(sums[o]);
}
#undef ADDED
