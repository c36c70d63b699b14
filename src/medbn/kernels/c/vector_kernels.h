/* All kernels of one instruction set, in terms of the vector operations that the including file defines for it:
 *
 *   LANES                        floats in a vector
 *   vf, vi, mask                 vectors of floats and of 32-bit integers; a set of lanes
 *   splat, load, store           one value in all lanes; unaligned loads and stores
 *   load_first, store_first      the first n lanes alone, n < LANES; the other lanes are loaded as 0
 *   first(n), both               sets of lanes
 *   less, upto, equal            <, <=, ==; comparisons with NaN are false
 *   above(count, n)              counts of more than n
 *   bits(m)                      the set as the bits of an integer
 *   keep(m, v)                   v in the lanes of m, 0 in the others
 *   magnitude(v)                 |v|
 *   add_mask(count, m)           count + 1 in the lanes of m
 *   compress(to, m, v)           store the lanes of m without gaps; return the end. Writes up to LANES floats.
 *   transpose                    16 rows of up to 16 values become columns
 *
 * What each kernel computes is said in binding.py. The order of every sum is fixed by the shape, the layout and LANES:
 * neither the number of threads nor the compiler changes it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLACK = 32,               /* floats that vector stores may write behind the end of a buffer */
    FLUSH = 64 * LANES,       /* values summed in float before the sums go on in double */
    TILE = 64,                /* the same for rows, where channels are last */
    BLOCK = 16,               /* channels that share a cache line, where channels are last */
    GROUP = 64,               /* channels whose rows are read together */
    CHUNK = 1 << 15           /* values of a unit of work, about */
};

#include "sums.h"
#include "select.h"
#include "column.h"
#include "bracket.h"
#include "survey.h"
#include "median_blocks.h"
#include "median_rows.h"
#include "pointwise.h"
#include "reduce.h"
#include "image_moments.h"
#include "image_middle.h"
