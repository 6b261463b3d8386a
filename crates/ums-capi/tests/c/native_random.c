/*
 * Random sequences of calls, compared with a model that says what each call must return.
 *
 * The model knows the object behind each pointer. Pointers are used after they were freed, freed
 * twice, and passed to functions of another kind. A failure prints the seed of its run;
 * `native_random thread SEED STEPS` repeats the run.
 */
#include "check.h"

enum { MUTEX, EVENT, AUTO_EVENT, SEMAPHORE, USER, TASK, KINDS };
enum { SLOTS = 6 };

struct entry {
    void *pointer; /* NULL: never created */
    int alive;
    long state;    /* locked, set, permits, holds, or the number that the task returns */
    int cancelled; /* the task may end without a result */
};

static struct entry model[KINDS][SLOTS];
static unsigned long long seed, dice;
static ums_node *node;
static long step;

static unsigned roll(unsigned sides)
{
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(dice >> 33) % sides;
}

static void expect(long long expected, long long got, const char *what)
{
    if (expected != got) {
        fprintf(stderr, "seed %llu step %ld: %s gave %lld, the model says %lld (%s)\n", seed, step,
                what, got, expected, ums_last_error());
        exit(1);
    }
}
#define EXPECT(expected, call) expect((expected), (long long)(call), #call)

static void *give_back(void *arg)
{
    return arg;
}

/* A freed pointer whose memory is used again for a new object is not recognised, so it is
 * skipped. */
static int is_used_again(const struct entry *entry)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < SLOTS; i++)
            if (model[kind][i].alive && model[kind][i].pointer == entry->pointer)
                return 1;
    return 0;
}

static void make(int kind, struct entry *e)
{
    int value = (int)roll(3);
    e->state = kind == SEMAPHORE ? value : 0;
    e->cancelled = 0;
    switch (kind) {
    case MUTEX: EXPECT(0, ums_mutex_new((ums_mutex **)&e->pointer)); break;
    case EVENT: EXPECT(0, ums_event_new(true, false, (ums_event **)&e->pointer)); break;
    case AUTO_EVENT: EXPECT(0, ums_event_new(false, false, (ums_event **)&e->pointer)); break;
    case SEMAPHORE:
        EXPECT(0, ums_semaphore_new((size_t)value, (ums_semaphore **)&e->pointer));
        break;
    case USER: EXPECT(0, ums_user_new(node, (ums_user **)&e->pointer)); break;
    case TASK:
        e->state = (long)roll(1000);
        EXPECT(0, ums_node_spawn(node, give_back, (void *)e->state, (ums_task **)&e->pointer));
        break;
    }
    e->alive = 1;
}

static void end(int kind, struct entry *e)
{
    long long gone = e->alive ? 0 : e->pointer ? -EBADF : 0; /* NULL may be freed */
    long long busy = e->alive && kind == MUTEX && e->state ? -EBUSY : gone;
    switch (kind) {
    case MUTEX: EXPECT(busy, ums_mutex_free(e->pointer)); break;
    case EVENT:
    case AUTO_EVENT: EXPECT(gone, ums_event_free(e->pointer)); break;
    case SEMAPHORE: EXPECT(gone, ums_semaphore_free(e->pointer)); break;
    case USER: EXPECT(gone, ums_user_free(e->pointer)); break;
    case TASK: EXPECT(e->pointer ? gone : -EINVAL, ums_task_detach(e->pointer)); break;
    }
    if (busy == 0)
        e->alive = 0;
}

static void use_mutex(struct entry *e, long long bad)
{
    if (roll(2)) {
        EXPECT(bad ? bad : e->state ? -EDEADLK : 0, ums_mutex_lock(e->pointer, roll(2) ? 0 : MS));
        e->state = bad ? e->state : 1;
    } else {
        EXPECT(bad ? bad : e->state ? 0 : -EPERM, ums_mutex_unlock(e->pointer));
        e->state = 0;
    }
}

static void use_event(struct entry *e, long long bad, int is_auto)
{
    switch (roll(4)) {
    case 0:
        EXPECT(bad, ums_event_set(e->pointer));
        e->state = 1;
        break;
    case 1:
        EXPECT(bad ? bad : e->state, ums_event_reset(e->pointer));
        e->state = 0;
        break;
    case 2: EXPECT(bad ? 0 : e->state, ums_event_is_set(e->pointer)); break;
    case 3:
        EXPECT(bad ? bad : e->state ? 0 : -ETIMEDOUT, ums_event_wait(e->pointer, 0));
        if (is_auto)
            e->state = 0;
        break;
    }
}

static void use_semaphore(struct entry *e, long long bad)
{
    size_t more = roll(3);
    switch (roll(3)) {
    case 0:
        EXPECT(bad ? bad : e->state ? 0 : -ETIMEDOUT, ums_semaphore_acquire(e->pointer, 0));
        e->state -= e->state > 0;
        break;
    case 1:
        EXPECT(bad, ums_semaphore_release(e->pointer, more));
        e->state += (long)more;
        break;
    case 2: EXPECT(bad ? 0 : e->state, ums_semaphore_available(e->pointer)); break;
    }
}

static void use_user(struct entry *e, long long bad)
{
    ums_task *task;
    void *result = NULL;
    switch (roll(4)) {
    case 0:
        EXPECT(bad, ums_user_hold(e->pointer));
        e->state++;
        break;
    case 1:
        EXPECT(bad ? bad : e->state ? 0 : -EPERM, ums_user_release(e->pointer));
        e->state -= e->state > 0;
        break;
    case 2: EXPECT(!bad, ums_user_id(e->pointer) != 0); break;
    case 3:
        EXPECT(bad, ums_user_enqueue(e->pointer, give_back, e, &task));
        if (!bad) {
            EXPECT(0, ums_task_join(task, UMS_FOREVER, &result));
            EXPECT((intptr_t)e, (intptr_t)result);
        }
        break;
    }
}

static void use_task(struct entry *e, long long bad)
{
    void *result = NULL;
    if (roll(3) == 0) {
        EXPECT(bad, ums_task_cancel(e->pointer));
        e->cancelled = 1;
        return;
    }
    int code = ums_task_join(e->pointer, UMS_FOREVER, &result);
    if (!bad && e->cancelled && code == -ENODATA)
        code = 0; /* it never began */
    else if (!bad)
        EXPECT(e->state, (intptr_t)result);
    EXPECT(bad, code);
    e->alive = 0;
}

static void one_step(void)
{
    int kind = (int)roll(KINDS);
    struct entry *e = &model[kind][roll(SLOTS)];
    if (!e->alive && is_used_again(e))
        return;
    unsigned what = roll(12);
    if (what == 0)
        end(kind, e);
    else if (what == 1 && e->alive && kind != MUTEX)
        EXPECT(-EBADF, ums_mutex_lock(e->pointer, 0)); /* the wrong kind */
    else if (what == 2 && e->alive && kind != USER)
        EXPECT(-EBADF, ums_user_hold(e->pointer));
    else if (what == 3)
        ums_yield();
    else if (!e->alive && what > 6)
        make(kind, e);
    else {
        long long bad = e->alive ? 0 : e->pointer ? -EBADF : -EINVAL;
        switch (kind) {
        case MUTEX: use_mutex(e, bad); break;
        case EVENT: use_event(e, bad, 0); break;
        case AUTO_EVENT: use_event(e, bad, 1); break;
        case SEMAPHORE: use_semaphore(e, bad); break;
        case USER: use_user(e, bad); break;
        case TASK: use_task(e, bad); break;
        }
    }
}

static void *walk(void *arg)
{
    for (step = 0; step < *(long *)arg; step++)
        one_step();
    return NULL;
}

static void clean_up(void)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < SLOTS; i++) {
            struct entry *e = &model[kind][i];
            if (e->alive && kind == MUTEX && e->state)
                continue; /* locked by a worker that has ended: it stays locked */
            if (e->alive)
                end(kind, e);
        }
    memset(model, 0, sizeof model);
}

int main(int argc, char **argv)
{
    unsigned long long first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    long steps = argc > 3 ? atol(argv[3]) : 20000;
    for (seed = first; seed < first + (argc > 2 ? 1 : 4); seed++) {
        dice = seed * 0x9e3779b97f4a7c15ull;
        node = node_of(argc, argv, 1 + seed % 2);
        IS(0, ums_node_run(node, walk, &steps, NULL));
        clean_up();
        IS(0, ums_node_free(node));
    }
    puts("ok");
    return 0;
}
