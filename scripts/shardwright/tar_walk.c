/* The members of a tar in a row whose headers are equal from the field of the type on, and hold no more than
   a name, a size and a time stamp before it that matter.

   Nearly all members of a shard are like that. Whatever is not, or is not in perfect order, ends the row;
   the caller looks at it. */

#define _FILE_OFFSET_BITS 64
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 512
#define NAME 100
#define CHECKSUM 148
#define TAIL 156
#define WINDOW (16 * BLOCK) /* a member's headers, and the small members behind it with theirs */

/* What the members share. A record begins, in its block behind the stamp's header, as `record` does. */
typedef struct {
    int32_t stamp_size;  /* bytes of the record; 0 where no header with a stamp precedes a member's own */
    int32_t record_size; /* bytes of `record` */
    uint8_t record[32];
    uint8_t stamp[BLOCK];
    uint8_t header[BLOCK];
} Usual;

typedef struct {
    int64_t offset, size; /* of the payload */
    uint8_t name[NAME];
    uint8_t zeros[4];
} Member;

static int is_stamped(const uint8_t *blocks, const Usual *usual)
{
    const uint8_t *record = blocks + BLOCK;
    return memcmp(blocks, usual->stamp, BLOCK) == 0 && memcmp(record, usual->record, usual->record_size) == 0 &&
           record[usual->stamp_size - 1] == '\n';
}

/* Whether the header states its checksum in six octal digits, NUL, space. */
static int is_intact(const uint8_t *header)
{
    unsigned sum = 8 * ' ', stated = 0;
    for (int i = 0; i < CHECKSUM; i++)
        sum += header[i];
    for (int i = TAIL; i < BLOCK; i++)
        sum += header[i];
    for (int i = CHECKSUM; i < CHECKSUM + 6; i++) {
        if (header[i] < '0' || header[i] > '7')
            return 0;
        stated = stated << 3 | (header[i] - '0');
    }
    return sum == stated && header[CHECKSUM + 6] == 0 && header[CHECKSUM + 7] == ' ';
}

/* The size, in eleven octal digits; -1 for another form. */
static int64_t size_of(const uint8_t *header)
{
    int64_t size = 0;
    for (int i = 124; i < 135; i++) {
        if (header[i] < '0' || header[i] > '7')
            return -1;
        size = size << 3 | (header[i] - '0');
    }
    return header[135] == 0 || header[135] == ' ' ? size : -1;
}

/* Fill `members` from the one whose headers are at `offset`; return how many are like `usual`. */
int walk(int descriptor, int64_t offset, int64_t file_size, const Usual *usual, Member *members, int max_members)
{
    uint8_t window[WINDOW];
    int64_t start = 0, end = 0, headers = usual->stamp_size ? 3 * BLOCK : BLOCK;
    for (int count = 0; count < max_members; count++) {
        Member *member = members + count;
        if (offset < start || offset + headers > end) {
            start = offset;
            end = start + pread(descriptor, window, WINDOW, start);
            if (offset + headers > end)
                return count;
        }
        const uint8_t *blocks = window + (offset - start), *header = blocks + headers - BLOCK;
        if (usual->stamp_size && !is_stamped(blocks, usual))
            return count;
        const uint8_t *name_end = memchr(header, 0, NAME);
        size_t length = name_end ? (size_t)(name_end - header) : NAME;
        if (memcmp(header + TAIL, usual->header + TAIL, BLOCK - TAIL) != 0 || !is_intact(header) ||
            (length && header[length - 1] == '/'))
            return count;
        member->offset = offset + headers;
        member->size = size_of(header);
        if (member->size < 0 || member->size > file_size - member->offset)
            return count;
        memset(member->name, 0, sizeof member->name + sizeof member->zeros);
        memcpy(member->name, header, length);
        offset = member->offset + (member->size + BLOCK - 1) / BLOCK * BLOCK;
    }
    return max_members;
}
