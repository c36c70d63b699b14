/* Launch all kernels of a layer on a GPU in one call, through the CUDA driver.
 *
 * Python describes a layer's launches once, as a ``program``: function handles, grids and parameters, of which only
 * addresses of tensors, and two numbers, differ from call to call. The driver's functions are given as addresses, so
 * that nothing here needs CUDA when it is built or loaded. A call writes to its own stack alone.
 */
#include "kernels.h"

#include <stddef.h>

enum { MOST_PARAMETERS = 64, TENSORS = 9, NUMBERS = 2, MISALIGNED = -1, TOO_MANY = -2 };

typedef int launch_function(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                            void **extra);
typedef int fill_function(uint64_t address, unsigned value, size_t count, void *stream);

struct parameter {
    uint64_t value; /* the parameter itself, or the distance from a tensor's address */
    int64_t tensor; /* whose address is added; -1 for none. TENSORS and above: the numbers of the call */
};

struct step {
    void *function; /* NULL: set ``grid[1]`` integers at the first parameter to ``grid[0]`` */
    uint32_t grid[3];
    uint32_t threads;
    uint32_t shared;
    uint32_t parameters;
};

struct program {
    launch_function *launch;
    fill_function *fill;
    const struct step *steps;
    const struct parameter *parameters; /* of all steps, one after the other */
    int64_t count;
};

static uint64_t float_bits(double number) {
    union {
        float number;
        uint32_t bits;
    } as = {.number = (float)number};
    return as.bits;
}

/* Return 0, an error of the driver, or, before anything was launched, MISALIGNED or TOO_MANY.
 *
 * Parameters of four bytes are the lower half of a value: every machine with such a GPU is little-endian. */
EXPORT int medbn_launch_program(const struct program *program, void *stream, double first, double second, uint64_t a,
                                uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h,
                                uint64_t i) {
    const uint64_t given[TENSORS + NUMBERS] = {a, b, c, d, e, f, g, h, i, float_bits(first), float_bits(second)};
    if ((a | b | c | d | e | f | g | h | i) & 15) return MISALIGNED; /* the kernels were compiled for multiples of 16 */
    for (int64_t number = 0; number < program->count; number++)
        if (program->steps[number].parameters > MOST_PARAMETERS) return TOO_MANY;
    const struct parameter *next = program->parameters;
    for (int64_t number = 0; number < program->count; number++) {
        const struct step *step = &program->steps[number];
        uint64_t values[MOST_PARAMETERS];
        void *addresses[MOST_PARAMETERS];
        for (uint32_t j = 0; j < step->parameters; j++, next++) {
            values[j] = next->value + (next->tensor < 0 ? 0 : given[next->tensor]);
            addresses[j] = &values[j];
        }
        const uint32_t *grid = step->grid;
        int status = step->function ? program->launch(step->function, grid[0], grid[1], grid[2], step->threads, 1, 1,
                                                      step->shared, stream, addresses, NULL)
                                    : program->fill(values[0], grid[0], grid[1], stream);
        if (status) return status;
    }
    return 0;
}
