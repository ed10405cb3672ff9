/* Is the compressed data of a baseline JPEG sound? Walks every Huffman code of its one scan.

   Of the coefficients only the first of each block is kept, so that most lookups step over several
   codes at once. The answer is yes only for data in perfect order, from the first code to the
   end-of-image marker; for anything else it is no, and the caller asks a whole decoder.
   The format: ITU-T T.81, annexes B, C and F. The branchless refill: F. Giesen, "Reading bits in far
   too many ways (part 2)", variant 4. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CODE_BITS 16   /* of the longest code */
#define WINDOW_BITS 12 /* how much data one lookup sees, to step over all codes that lie in it */
#define STEP_BITS 14   /* how much it may step over: values may reach out of the window */
#define FILLED_BITS 56 /* what a refill leaves, at least: as much as four steps take */
#define BLOCK_SIZE 64
#define ENDS 128       /* the steps of an end of block, beside those before it */
#define MAX_DC_SIZE 11
#define MAX_DC 2047    /* of eight-bit pictures, in steps of the quantiser */
#define SLACK 4096     /* zeros behind the data: a damaged MCU of 10 blocks reads 2,500 bytes of them at most */

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

typedef struct {
    const uint8_t *next;
    uint64_t bits;  /* the data from the top down; `count` bits of them are accounted for in `next` */
    unsigned count;
} Reader;

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

static inline void fill(Reader *reader)
{
    reader->bits |= load(reader->next) >> reader->count;
    reader->next += (63 - reader->count) >> 3;
    reader->count |= FILLED_BITS;
}

static inline void drop(Reader *reader, unsigned count)
{
    reader->bits <<= count;
    reader->count -= count;
}

static inline unsigned look(const Reader *reader, const Table *table)
{
    return table->window[reader->bits >> (64 - WINDOW_BITS)];
}

static inline unsigned look_long(const Reader *reader, const Table *table)
{
    return table->single[reader->bits >> (64 - CODE_BITS)];
}

/* Leaves room for three steps. */
static inline int read_dc(Reader *reader, const Table *table, int32_t *dc)
{
    fill(reader);
    unsigned entry = look(reader, table), is_long = entry == NONE;
    if (__builtin_expect(is_long, 0) && (entry = look_long(reader, table)) == NONE)
        return 0;
    unsigned size = STEPS(entry);
    int32_t value = (int32_t)(reader->bits << (NUM_BITS(entry) - size) >> 1 >> (63 - size));
    *dc += value - (value < 1 << size >> 1 ? (1 << size) - 1 : 0);
    drop(reader, NUM_BITS(entry));
    if (__builtin_expect(is_long, 0))
        fill(reader);
    return *dc >= -MAX_DC && *dc <= MAX_DC;
}

static inline int skip_ac(Reader *reader, const Table *table)
{
    unsigned position = 1;
    for (int room = 3;; room = 4, fill(reader)) {
        for (; room > 0; room--) {
            unsigned entry = look(reader, table), after = position + STEPS(entry);
            if (after >= BLOCK_SIZE) {
                if (after - ENDS < BLOCK_SIZE) {
                    drop(reader, NUM_BITS(entry));
                    return 1;
                }
                break;
            }
            drop(reader, NUM_BITS(entry));
            position = after;
        }
        if (__builtin_expect(room > 0, 0)) { /* one code, which may be longer than a step */
            fill(reader);
            unsigned entry = look_long(reader, table);
            position += STEPS(entry);
            drop(reader, NUM_BITS(entry));
            if (position >= BLOCK_SIZE)
                return position == BLOCK_SIZE || position - ENDS < BLOCK_SIZE;
        }
    }
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

/* Whether the last byte of the data has been begun, and nothing behind it. */
static int is_used_up(const Reader *reader, const uint8_t *end)
{
    ptrdiff_t left = 8 * (end - reader->next) + (ptrdiff_t)reader->count;
    return left >= 0 && left < 8;
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
    int32_t level = ((dc * quantiser + 4) >> 3) + 128;
    return level < -384 || level > 639 ? -1 : level < 0 ? 0 : level > 255 ? 255 : level;
}

static int scan_copied(
    const uint8_t *data, const uint8_t *end, int width, int height, const Plan *plan, uint8_t *copy)
{
    const uint8_t *copy_end, *marker = unstuff(data, end, copy, &copy_end);
    Reader reader = {copy, 0, 0};
    int blocks_x = (width + 7) / 8, blocks_y = (height + 7) / 8;
    int mcus_x = (blocks_x + plan->h[0] - 1) / plan->h[0], mcus_y = (blocks_y + plan->v[0] - 1) / plan->v[0];
    int32_t dc[3] = {0, 0, 0}, least = MAX_DC, greatest = -MAX_DC;
    int until_restart = plan->restart, num_restarts = 0;
    for (int y = 0; y < mcus_y; y++) {
        for (int x = 0; x < mcus_x; x++) {
            if (plan->restart && until_restart-- == 0) {
                int number = num_restarts++ & 7;
                if (!is_used_up(&reader, copy_end) || end - marker < 2 || marker[1] != 0xD0 + number)
                    return -1;
                marker = unstuff(marker + 2, end, copy, &copy_end);
                reader = (Reader){copy, 0, 0};
                until_restart = plan->restart - 1;
                memset(dc, 0, sizeof dc);
            }
            for (int c = 0; c < plan->num_components; c++) {
                for (int v = 0; v < plan->v[c]; v++) {
                    for (int h = 0; h < plan->h[c]; h++) {
                        if (!read_dc(&reader, plan->dc[c], &dc[c]) || !skip_ac(&reader, plan->ac[c]))
                            return -1;
                        if (c == 0 && x * plan->h[0] + h < blocks_x && y * plan->v[0] + v < blocks_y) {
                            least = dc[0] < least ? dc[0] : least;
                            greatest = dc[0] > greatest ? dc[0] : greatest;
                        }
                    }
                }
            }
            if (reader.next > copy_end + 8)
                return -1;
        }
    }
    int darkest = grey(least, plan->quantiser), lightest = grey(greatest, plan->quantiser);
    if (darkest < 0 || lightest < 0 || !is_used_up(&reader, copy_end) || !is_end(marker, end))
        return -1;
    return darkest << 8 | lightest;
}

/* Return the greys of the darkest and the lightest block of luminance in the picture, as one number of two
   bytes, if the compressed data, from `start` on, are sound; else -1. */
int scan(const uint8_t *file, size_t start, size_t size, int width, int height, const Plan *plan)
{
    uint8_t *copy = start <= size ? malloc(size + SLACK) : NULL;
    int greys = copy ? scan_copied(file + start, file + size, width, height, plan, copy) : -1;
    free(copy);
    return greys;
}
