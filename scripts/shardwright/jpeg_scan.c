/* Is the compressed data of baseline JPEGs sound? Walks every Huffman code of their one scan.

   A lookup in a table waits for the one before it: only that tells where the next code begins. So four files
   are walked side by side, a block of each at a time, and a processor has four lookups to work on. Of the
   coefficients only the first of each block is kept, so that most lookups step over several codes at once.
   The answer is yes only for data in perfect order, from the first code to the end-of-image marker; for
   anything else it is no, and the caller asks a whole decoder.
   The format: ITU-T T.81, annexes B, C and F. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 4
#define CODE_BITS 16   /* of the longest code */
#define WINDOW_BITS 12 /* how much data one lookup sees, to step over all codes that lie in it */
#define STEP_BITS 14   /* how much it may step over: values may reach out of the window */
#define BLOCK_SIZE 64
#define ENDS 128       /* the steps of an end of block, beside those before it */
#define MAX_DC_SIZE 11
#define MAX_DC 2047    /* of eight-bit pictures, in steps of the quantiser */
#define SLACK 4096     /* zeros behind the data: a damaged MCU of 10 blocks reads 2,500 bytes of them at most */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* An entry: the number of bits of codes and values | 64 times the steps in the block (AC), or the size of
   the value (DC). It is NONE where no code begins, or none that can be stepped over. */
typedef struct {
    uint16_t window[1 << WINDOW_BITS]; /* one DC code, or as many AC codes as fit */
    uint16_t single[1 << CODE_BITS];   /* one code */
} Table;

#define NONE (BLOCK_SIZE << 6)
#define NUM_BITS(entry) ((entry) & 63)
#define STEPS(entry) ((entry) >> 6)

typedef struct {
    int32_t num_components; /* 1 or 3; the first is luminance, sampled no coarser than the others */
    int32_t restart;        /* MCUs between restart markers, 0 for none */
    int32_t quantiser;      /* of the luminance's first coefficient */
    int32_t h[3], v[3];     /* blocks of each component in an MCU */
    const Table *dc[3], *ac[3];
} Plan;

/* A file on its way. */
typedef struct {
    int file;                    /* its number; -1 for one that only keeps the lane busy */
    int is_sound;                /* so far */
    uint8_t *copy;               /* the data up to the marker, without stuffed zeros; zeros behind them */
    const uint8_t *copy_end, *marker, *end;
    uint64_t at;                 /* bits of the copy that were read */
    int blocks_x;                /* the picture's width */
    int inside_x, inside_y;      /* blocks from the MCU's first one to the right and lower edge */
    int until_restart, num_restarts;
    int32_t dc, least, greatest; /* of the luminance's first coefficients */
} Lane;

/* A lane inside a block, in registers. */
typedef struct {
    const uint8_t *copy;
    uint64_t at, bits;            /* `bits`: the data behind `at` from the top down; enough for three steps */
    uint32_t taken, before, live; /* `taken`: place in the block, and bits of the steps, as in an entry;
                                     `before`: without these steps; `live`: all ones inside the block, else 0 */
} Walk;

static inline uint64_t load(const uint8_t *bytes)
{
    uint64_t value = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(&value, bytes, 8);
    return __builtin_bswap64(value);
#else
    for (int i = 0; i < 8; i++)
        value = value << 8 | bytes[i];
    return value;
#endif
}

static inline uint64_t look(const uint8_t *copy, uint64_t at)
{
    return load(copy + (at >> 3)) << (at & 7);
}

/* Read the first coefficient of a block; its value counts for luminance in the picture. */
ALWAYS_INLINE Walk begin_block(Lane *lane, const Table *table, int is_luminance, int is_inside)
{
    Walk walk = {lane->copy, lane->at, look(lane->copy, lane->at), 1 << 6, 1 << 6, ~0u};
    unsigned entry = table->window[walk.bits >> (64 - WINDOW_BITS)], is_long = entry == NONE;
    if (__builtin_expect(is_long, 0) && (entry = table->single[walk.bits >> (64 - CODE_BITS)]) == NONE)
        entry = (unsigned)(lane->is_sound = 0);
    if (is_luminance) {
        unsigned size = STEPS(entry);
        int32_t value = (int32_t)(walk.bits << (NUM_BITS(entry) - size) >> 1 >> (63 - size));
        lane->dc += value - (value < 1 << size >> 1 ? (1 << size) - 1 : 0);
        if (is_inside) {
            lane->least = lane->dc < lane->least ? lane->dc : lane->least;
            lane->greatest = lane->dc > lane->greatest ? lane->dc : lane->greatest;
        }
    }
    walk.at += NUM_BITS(entry);
    walk.bits = __builtin_expect(is_long, 0) ? look(walk.copy, walk.at) : walk.bits << NUM_BITS(entry);
    return walk;
}

/* One lookup; none in a lane whose block has ended. */
ALWAYS_INLINE void step(Walk *walk, const Table *table)
{
    uint32_t entry = table->window[walk->bits >> (64 - WINDOW_BITS)] & walk->live;
    walk->bits <<= NUM_BITS(entry);
    walk->taken += entry;
    walk->live = -(uint32_t)(walk->taken < BLOCK_SIZE << 6);
}

/* Step over single codes, which may be longer than a step, to the end of the block; return where that is, or
   0 if there is none. */
static __attribute__((noinline)) uint64_t skip_singly(
    const uint8_t *copy, uint64_t at, const Table *table, unsigned position)
{
    do {
        unsigned entry = table->single[look(copy, at) >> (64 - CODE_BITS)];
        position += STEPS(entry);
        at += NUM_BITS(entry);
    } while (position < BLOCK_SIZE);
    return position == BLOCK_SIZE || position - ENDS < BLOCK_SIZE ? at : 0;
}

/* Account for the steps, or undo them if they were too long or led out of the block. */
ALWAYS_INLINE void settle(Walk *walk, Lane *lane, const Table *table)
{
    uint32_t ended = walk->taken - (ENDS << 6), inside = BLOCK_SIZE << 6;
    if (__builtin_expect(walk->taken >= inside && ended >= inside, 0)) {
        uint64_t end = skip_singly(walk->copy, walk->at, table, STEPS(walk->before));
        lane->is_sound &= end > 0;
        walk->at = end > 0 ? end : walk->at;
        walk->taken = ENDS << 6;
    }
    walk->at += NUM_BITS(walk->taken);
    walk->taken -= NUM_BITS(walk->taken);
}

ALWAYS_INLINE void refill(Walk *walk)
{
    walk->bits = look(walk->copy, walk->at);
    walk->before = walk->taken;
}

/* Written out, so that the compiler keeps every lane in registers. */
#define EACH_LANE(call)         \
    {                           \
        { enum { i = 0 }; call; } \
        { enum { i = 1 }; call; } \
        { enum { i = 2 }; call; } \
        { enum { i = 3 }; call; } \
    }

/* A block in each lane; h and v: its place in the MCU. */
ALWAYS_INLINE void walk_block(Lane *lanes, const Plan *plan, int component, int h, int v)
{
    const Table *dc = plan->dc[component], *ac = plan->ac[component];
    Walk walks[LANES];
    EACH_LANE(walks[i] = begin_block(lanes + i, dc, component == 0, h < lanes[i].inside_x && v < lanes[i].inside_y))
    for (;;) {
        EACH_LANE(step(walks + i, ac))
        EACH_LANE(step(walks + i, ac))
        EACH_LANE(step(walks + i, ac))
        EACH_LANE(settle(walks + i, lanes + i, ac))
        if (!(walks[0].live | walks[1].live | walks[2].live | walks[3].live))
            break;
        EACH_LANE(refill(walks + i))
    }
    EACH_LANE(lanes[i].at = walks[i].at)
}

/* Copy the data up to a marker, without the zeros stuffed behind each 0xFF; return where the marker is. */
static const uint8_t *unstuff(const uint8_t *data, const uint8_t *end, uint8_t *copy, const uint8_t **copy_end)
{
    for (;;) {
        const uint8_t *found = memchr(data, 0xFF, (size_t)(end - data));
        size_t size = (size_t)((found ? found : end) - data);
        memcpy(copy, data, size);
        copy += size;
        if (!found || end - found < 2 || found[1] != 0) {
            memset(copy, 0, SLACK);
            *copy_end = copy;
            return found ? found : end;
        }
        *copy++ = 0xFF;
        data = found + 2;
    }
}

/* The end of image, after comments or application data at most, and nothing behind it. */
static int is_end(const uint8_t *next, const uint8_t *end)
{
    while (end - next >= 4 && next[0] == 0xFF && (next[1] == 0xFE || (next[1] & 0xF0) == 0xE0)) {
        ptrdiff_t size = 2 + (next[2] << 8 | next[3]);
        if (size < 4 || size > end - next)
            return 0;
        next += size;
    }
    return end - next == 2 && next[0] == 0xFF && next[1] == 0xD9;
}

/* Fill a table from a DHT segment's 16 counts and its values; 0 if they are out of order. */
int make_table(const uint8_t *counts, const uint8_t *values, int is_ac, Table *table)
{
    uint8_t lengths[1 << CODE_BITS]; /* of the codes alone */
    uint32_t code = 0;               /* of the next value, at the top of 16 bits */
    for (uint32_t data = 0; data < 1 << CODE_BITS; data++)
        table->single[data] = NONE;
    for (uint32_t length = 1; length <= CODE_BITS; length++) {
        for (int i = 0; i < counts[length - 1]; i++, values++) {
            uint32_t width = 1u << (CODE_BITS - length);
            uint32_t run = *values >> 4, size = *values & 15;
            if (code + width > 0xFFFF || (!is_ac && *values > MAX_DC_SIZE))
                return 0; /* the code of ones alone is no code */
            uint32_t steps = !is_ac ? size : size ? run + 1 : run == 15 ? 16 : ENDS;
            for (uint32_t data = code; data < code + width; data++) {
                table->single[data] = (uint16_t)(length + size + (steps << 6));
                lengths[data] = (uint8_t)length;
            }
            code += width;
        }
    }
    for (uint32_t window = 0; window < 1 << WINDOW_BITS; window++) {
        uint32_t bits = 0, steps = 0;
        do {
            uint32_t data = window << (CODE_BITS - WINDOW_BITS) << bits & 0xFFFF, entry = table->single[data];
            if (entry == NONE || bits + lengths[data] > WINDOW_BITS || bits + NUM_BITS(entry) > STEP_BITS)
                break;
            if (STEPS(entry) != ENDS && steps + STEPS(entry) >= BLOCK_SIZE)
                break; /* never in a sound block; and an entry that ends one is told by its size */
            bits += NUM_BITS(entry);
            steps += STEPS(entry);
        } while (is_ac && bits < WINDOW_BITS && steps < ENDS);
        table->window[window] = (uint16_t)(bits ? bits | steps << 6 : NONE);
    }
    return 1;
}

size_t table_size(void)
{
    return sizeof(Table);
}

/* The mean of a block, from 0 to 255; -1 out of libjpeg's own range. */
static int grey(int32_t dc, int32_t quantiser)
{
    if (dc < -MAX_DC || dc > MAX_DC)
        return -1;
    int32_t level = ((dc * quantiser + 4) >> 3) + 128;
    return level < -384 || level > 639 ? -1 : level < 0 ? 0 : level > 255 ? 255 : level;
}

/* Whether the last byte of the data has been begun, and nothing behind it. */
static int is_used_up(const Lane *lane)
{
    int64_t left = 8 * (lane->copy_end - lane->copy) - (int64_t)lane->at;
    return left >= 0 && left < 8;
}

static void restart(Lane *lane, const Plan *plan)
{
    int number = lane->num_restarts++ & 7;
    lane->is_sound &= is_used_up(lane) && lane->end - lane->marker >= 2 && lane->marker[1] == 0xD0 + number;
    if (!lane->is_sound)
        return;
    lane->marker = unstuff(lane->marker + 2, lane->end, lane->copy, &lane->copy_end);
    lane->at = 0;
    lane->dc = 0;
    lane->until_restart = plan->restart;
}

static void walk_mcu(Lane *lanes, const Plan *plan)
{
    for (Lane *lane = lanes; plan->restart && lane < lanes + LANES; lane++) {
        if (lane->until_restart == 0)
            restart(lane, plan);
        lane->until_restart--;
    }
    for (int v = 0; v < plan->v[0]; v++)
        for (int h = 0; h < plan->h[0]; h++)
            walk_block(lanes, plan, 0, h, v);
    for (int component = 1; component < plan->num_components; component++)
        for (int block = 0; block < plan->h[component] * plan->v[component]; block++)
            walk_block(lanes, plan, component, 0, 0);
    for (Lane *lane = lanes; lane < lanes + LANES; lane++) {
        lane->is_sound &= (ptrdiff_t)(lane->at >> 3) <= lane->copy_end - lane->copy + 8;
        if ((lane->inside_x -= plan->h[0]) <= 0) {
            lane->inside_x = lane->blocks_x;
            lane->inside_y -= plan->v[0];
        }
    }
}

static void begin_file(
    Lane *lane, const uint8_t *file, size_t start, size_t size, int width, int height, const Plan *plan)
{
    lane->is_sound = start <= size;
    lane->end = file + size;
    lane->marker = unstuff(lane->is_sound ? file + start : lane->end, lane->end, lane->copy, &lane->copy_end);
    lane->at = 0;
    lane->inside_x = lane->blocks_x = (width + 7) / 8;
    lane->inside_y = (height + 7) / 8;
    lane->until_restart = plan->restart;
    lane->num_restarts = 0;
    lane->dc = 0;
    lane->least = MAX_DC;
    lane->greatest = -MAX_DC;
}

static int end_file(const Lane *lane, const Plan *plan)
{
    int darkest = grey(lane->least, plan->quantiser), lightest = grey(lane->greatest, plan->quantiser);
    if (!lane->is_sound || darkest < 0 || lightest < 0 || !is_used_up(lane) || !is_end(lane->marker, lane->end))
        return -1;
    return darkest << 8 | lightest;
}

static void scan_in(Lane *lanes, int num_files, const uint8_t *const *files, const size_t *starts,
    const size_t *sizes, const int32_t *widths, const int32_t *heights, const Plan *plan, int32_t *greys)
{
    int next = 0, num_left = num_files;
    for (;;) {
        for (Lane *lane = lanes; lane < lanes + LANES; lane++) {
            if (lane->is_sound && lane->inside_y > 0)
                continue;
            if (lane->file >= 0) {
                greys[lane->file] = end_file(lane, plan);
                if (--num_left == 0)
                    return;
            }
            int file = next < num_files ? next : 0; /* once more, to keep the lane busy while others work */
            lane->file = next < num_files ? next++ : -1;
            begin_file(lane, files[file], starts[file], sizes[file], widths[file], heights[file], plan);
        }
        walk_mcu(lanes, plan);
    }
}

/* Say of each file whether its compressed data, from `starts` on, are sound: `greys` gets those of the darkest
   and the lightest block of luminance in the picture, as one number of two bytes; or -1, and none is written
   where there is no memory. All files have the plan's header but for their sizes, of 2^24 pixels at most. */
void scan(int num_files, const uint8_t *const *files, const size_t *starts, const size_t *sizes,
    const int32_t *widths, const int32_t *heights, const Plan *plan, int32_t *greys)
{
    Lane lanes[LANES];
    size_t largest = 0;
    int is_ready = num_files > 0;
    for (int file = 0; file < num_files; file++)
        largest = sizes[file] > largest ? sizes[file] : largest;
    memset(lanes, 0, sizeof lanes);
    for (Lane *lane = lanes; lane < lanes + LANES; lane++) {
        lane->file = -1;
        lane->copy = malloc(largest + SLACK);
        is_ready &= lane->copy != NULL;
    }
    if (is_ready)
        scan_in(lanes, num_files, files, starts, sizes, widths, heights, plan, greys);
    for (int i = 0; i < LANES; i++)
        free(lanes[i].copy);
}
