/* Is the compressed data of a baseline JPEG sound? Walks every Huffman code of its one scan.

   Of the coefficients only the first of each block is kept, so that most lookups step over several
   codes at once. The answer is yes only for data in perfect order, from the first code to the
   end-of-image marker; for anything else it is no, and the caller asks a whole decoder.
   The format: ITU-T T.81, annexes B, C and F. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MANY_BITS 13 /* how much data one lookup sees, to step over all codes that lie in it */
#define FAST_BITS 12
#define BLOCK_SIZE 64
#define MAX_DC_SIZE 11
#define MAX_DC 2047 /* of eight-bit pictures, in steps of the quantiser */

/* Entries are 0 where no code begins. An AC code is told by its bits, those of its value with them,
   and how far it moves on in the block (an end of block: 64); a DC code by its bits and the bits
   of its value. */
typedef struct {
    uint16_t many[1 << MANY_BITS]; /* bits | steps << 4 | whether the block ends << 11 */
    uint16_t fast[1 << FAST_BITS]; /* bits | steps << 5, for codes of up to 12 bits */
    uint16_t slow[1 << 16];        /* the same for all */
} Table;

typedef struct {
    int32_t num_components; /* 1 or 3; the first is luminance, sampled no coarser than the others */
    int32_t restart;        /* MCUs between restart markers, 0 for none */
    int32_t h[3], v[3];     /* blocks of each component in an MCU */
    const Table *dc[3], *ac[3];
} Plan;

typedef struct {
    const uint8_t *next, *end;
    uint64_t bits; /* the next `count` bits of the data, from the top down */
    int count;
} Reader;

static int holds_ff(uint64_t bytes)
{
    uint64_t inverted = ~bytes;
    return ((inverted - 0x0101010101010101u) & ~inverted & 0x8080808080808080u) != 0;
}

static inline void fill(Reader *reader)
{
    if (reader->count > 56)
        return;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t ahead;
    if (reader->end - reader->next >= 8) {
        memcpy(&ahead, reader->next, 8);
        if (!holds_ff(ahead)) {
            int num_bytes = (64 - reader->count) / 8;
            ahead = __builtin_bswap64(ahead) >> (64 - 8 * num_bytes);
            reader->bits |= ahead << (64 - 8 * num_bytes - reader->count);
            reader->count += 8 * num_bytes;
            reader->next += num_bytes;
            return;
        }
    }
#endif
    while (reader->count <= 56 && reader->next < reader->end) {
        uint64_t byte = *reader->next;
        if (byte == 0xFF) {
            if (reader->end - reader->next < 2 || reader->next[1] != 0)
                return; /* a marker */
            reader->next++;
        }
        reader->next++;
        reader->bits |= byte << (56 - reader->count);
        reader->count += 8;
    }
}

static inline int drop(Reader *reader, int count)
{
    if (count > reader->count)
        return 0;
    reader->bits <<= count;
    reader->count -= count;
    return 1;
}

static inline int lookup(const Table *table, const Reader *reader)
{
    int entry = table->fast[reader->bits >> (64 - FAST_BITS)];
    return entry ? entry : table->slow[reader->bits >> 48];
}

static inline int read_dc(Reader *reader, const Table *table, int32_t *dc)
{
    fill(reader);
    int entry = lookup(table, reader), size = entry >> 5;
    if (!entry || !drop(reader, entry & 31))
        return 0;
    if (size) {
        int32_t value = (int32_t)(reader->bits >> (64 - size));
        if (!drop(reader, size))
            return 0;
        *dc += value >> (size - 1) ? value : value - (1 << size) + 1;
    }
    return *dc >= -MAX_DC && *dc <= MAX_DC;
}

static inline int skip_ac(Reader *reader, const Table *table)
{
    int position = 1;
    while (position < BLOCK_SIZE) {
        if (reader->count < 32)
            fill(reader);
        int entry = table->many[reader->bits >> (64 - MANY_BITS)];
        int after = position + (entry >> 4 & 127), ends = entry >> 11;
        if (entry && after + ends <= BLOCK_SIZE) {
            if (!drop(reader, entry & 15))
                return 0;
            position = ends ? BLOCK_SIZE : after;
            continue;
        }
        entry = lookup(table, reader);
        if (!entry || !drop(reader, entry & 31))
            return 0;
        if (entry >> 5 == BLOCK_SIZE)
            return 1;
        position += entry >> 5;
    }
    return position == BLOCK_SIZE;
}

static int take_restart(Reader *reader, int number)
{
    if (reader->count >= 8 || reader->end - reader->next < 2)
        return 0;
    if (reader->next[0] != 0xFF || reader->next[1] != 0xD0 + number)
        return 0;
    reader->next += 2;
    reader->bits = 0;
    reader->count = 0;
    return 1;
}

/* The end of image, after comments or application data at most, and nothing behind it. */
static int at_end(const Reader *reader)
{
    const uint8_t *next = reader->next, *end = reader->end;
    if (reader->count >= 8)
        return 0;
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
    uint32_t code = 0; /* of the next value, at the top of 16 bits */
    memset(table, 0, sizeof *table);
    for (int length = 1; length <= 16; length++) {
        for (int i = 0; i < counts[length - 1]; i++, values++) {
            uint32_t width = 1u << (16 - length);
            int run = *values >> 4, size = *values & 15;
            if (code + width > 0xFFFF || (!is_ac && *values > MAX_DC_SIZE))
                return 0; /* the code of ones alone is no code */
            int steps = size ? run + 1 : run == 15 ? 16 : BLOCK_SIZE;
            uint16_t entry = (uint16_t)(is_ac ? length + size + (steps << 5) : length + (*values << 5));
            for (uint32_t bits = code; bits < code + width; bits++)
                table->slow[bits] = entry;
            for (uint32_t bits = code; length <= FAST_BITS && bits < code + width; bits += 1 << (16 - FAST_BITS))
                table->fast[bits >> (16 - FAST_BITS)] = entry;
            code += width;
        }
    }
    for (uint32_t data = 0; is_ac && data < 1 << MANY_BITS; data++) {
        int bits = 0, steps = 0, ends = 0;
        while (!ends) {
            int entry = table->slow[(data << (16 - MANY_BITS) << bits) & 0xFFFF];
            if (!entry || bits + (entry & 31) > MANY_BITS || (entry >> 5 < BLOCK_SIZE && steps + (entry >> 5) >= BLOCK_SIZE))
                break;
            bits += entry & 31;
            ends = entry >> 5 == BLOCK_SIZE;
            steps += ends ? 0 : entry >> 5;
        }
        table->many[data] = (uint16_t)(bits | steps << 4 | ends << 11);
    }
    return 1;
}

size_t table_size(void)
{
    return sizeof(Table);
}

/* Return 1 if the data that follows the scan's header is sound, and the least and the greatest first
   coefficient of the luminance blocks that lie in the picture; else 0. */
int scan(const uint8_t *data, size_t size, int width, int height, const Plan *plan, int32_t *range)
{
    Reader reader = {data, data + size, 0, 0};
    int blocks_x = (width + 7) / 8, blocks_y = (height + 7) / 8;
    int mcus_x = (blocks_x + plan->h[0] - 1) / plan->h[0], mcus_y = (blocks_y + plan->v[0] - 1) / plan->v[0];
    int32_t dc[3] = {0, 0, 0};
    int until_restart = plan->restart, num_restarts = 0;
    range[0] = MAX_DC;
    range[1] = -MAX_DC;
    for (int y = 0; y < mcus_y; y++) {
        for (int x = 0; x < mcus_x; x++) {
            if (plan->restart && until_restart-- == 0) {
                if (!take_restart(&reader, num_restarts++ & 7))
                    return 0;
                until_restart = plan->restart - 1;
                memset(dc, 0, sizeof dc);
            }
            for (int c = 0; c < plan->num_components; c++) {
                for (int block = 0; block < plan->h[c] * plan->v[c]; block++) {
                    if (!read_dc(&reader, plan->dc[c], &dc[c]) || !skip_ac(&reader, plan->ac[c]))
                        return 0;
                    int in_x = x * plan->h[0] + block % plan->h[0] < blocks_x;
                    int in_y = y * plan->v[0] + block / plan->h[0] < blocks_y;
                    if (c == 0 && in_x && in_y) {
                        range[0] = dc[0] < range[0] ? dc[0] : range[0];
                        range[1] = dc[0] > range[1] ? dc[0] : range[1];
                    }
                }
            }
        }
    }
    return at_end(&reader);
}
