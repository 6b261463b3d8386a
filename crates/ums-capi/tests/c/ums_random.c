/*
 * Random sequences of UMS calls, compared with a model that says what each call may return.
 *
 * For each context the model knows its place. The main thread creates, starts, ends and deletes
 * workers. An entry point executes workers, suspends them, queries them and takes them from the
 * list. It also makes each of these calls with wrong contexts. It leaves scheduling mode at random
 * moments and enters it again later. A failure prints its seed. `ums_random SEED ROUNDS` begins the
 * same sequence; how the workers block may still differ.
 */
#include <pthread.h>

#include "kit.h"

enum { SLOTS = 8 };

enum place {
    NOWHERE, /* no context, or a deleted one */
    FRESH,   /* a context without a worker */
    LISTED,  /* on the completion list, or blocked, so that it will be queued there */
    READY,   /* taken from the list, or yielded */
    OVER     /* terminated, and taken from the list */
};

typedef struct {
    worker w;
    enum place place;
    int suspended;
    unsigned dice;
} slot;

static slot slots[SLOTS];
static PUMS_COMPLETION_LIST list;
static unsigned long long seed, dice;
static int steps_left;
static slot *running;
static long executed, taken, left_early;

static unsigned roll(unsigned sides)
{
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(dice >> 33) % sides;
}

#define MODEL(what)                                                                            \
    do {                                                                                       \
        if (!(what)) {                                                                         \
            fprintf(stderr, "seed %llu, %s:%d: %s (last error %u)\n", seed, __FILE__, __LINE__, \
                    #what, (unsigned)GetLastError());                                          \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

static DWORD WINAPI work(LPVOID arg)
{
    slot *me = CONTAINING_RECORD(arg, slot, w);
    for (;;) {
        me->dice = me->dice * 1103515245u + 12345u;
        switch ((me->dice >> 16) % 12) {
        case 0: return 1;
        case 1: ExitThread(2);
        case 2: pthread_exit(NULL);
        case 3:
        case 4: Sleep(1); break;
        default: CHECK(UmsThreadYield(me)); break;
        }
    }
}

static void take(DWORD ms)
{
    PUMS_CONTEXT item = NULL;
    MODEL(DequeueUmsCompletionListItems(list, ms, &item));
    while (item) {
        PUMS_CONTEXT next = GetNextUmsListItem(item);
        slot *s = CONTAINING_RECORD(worker_of(item), slot, w);
        MODEL(s->place == LISTED); /* once, and only a worker that was executed or started */
        s->place = is_terminated(item) ? OVER : READY;
        MODEL(GetNextUmsListItem(item) == NULL);
        taken++;
        item = next;
    }
}

static void ask(slot *s)
{
    BOOLEAN over = 9, suspended = 9;
    BOOL ok = QueryUmsThreadInformation(s->w.context, UmsThreadIsTerminated, &over, 1, NULL);
    if (s->place == NOWHERE) {
        /* The memory of the deleted context may belong to the scheduler's own context now, which
         * may be queried. */
        if (s->w.context && s->w.context == GetCurrentUmsThread())
            return;
        MODEL(!ok && GetLastError() == ERROR_INVALID_PARAMETER);
        return;
    }
    MODEL(ok && (s->place == LISTED || over == (s->place == OVER)));
    MODEL(QueryUmsThreadInformation(s->w.context, UmsThreadIsSuspended, &suspended, 1, NULL));
    MODEL(s->place == OVER || suspended == (s->suspended > 0));
}

static void suspend_or_resume(slot *s)
{
    /* If the worker could block or end meanwhile, the model would not know the result. */
    if (s->place != READY)
        return;
    if (s->suspended == 0 || roll(2)) {
        MODEL(SuspendThread(s->w.thread) == (DWORD)s->suspended);
        s->suspended++;
    } else {
        MODEL(ResumeThread(s->w.thread) == (DWORD)s->suspended);
        s->suspended--;
    }
}

static void execute(slot *s)
{
    enum place place = s->place;
    if (place == READY && !s->suspended) {
        s->place = LISTED;
        running = s;
    }
    executed++;
    SetLastError(0);
    MODEL(!ExecuteUmsThread(s->w.context));
    DWORD error = GetLastError();
    switch (place) {
    case NOWHERE:
    case FRESH: MODEL(error == ERROR_INVALID_PARAMETER); break;
    case OVER: MODEL(error == ERROR_INVALID_PARAMETER); break;
    case LISTED:
        MODEL(error == ERROR_INTERNAL_ERROR || error == ERROR_RETRY ||
              error == ERROR_INVALID_PARAMETER);
        break;
    case READY:
        MODEL(s->suspended ? error == ERROR_INVALID_PARAMETER : error == ERROR_RETRY);
        s->place = READY;
        running = NULL;
        break;
    }
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    if (reason == UmsSchedulerStartup) {
        MODEL(param == &seed && running == NULL);
    } else {
        MODEL(running != NULL);
        if (reason == UmsSchedulerThreadYield) {
            MODEL((PUMS_CONTEXT)payload == running->w.context && param == running);
            MODEL(running->place == LISTED);
            running->place = READY;
        } else {
            MODEL(param == NULL && payload <= 1);
        }
        running = NULL;
    }
    while (steps_left-- > 0) {
        slot *s = &slots[roll(SLOTS)];
        switch (roll(8)) {
        case 0: take(roll(3)); break;
        case 1: ask(s); break;
        case 2: suspend_or_resume(s); break;
        case 3:
            if (s->place == READY) {
                MODEL(!DeleteUmsThreadContext(s->w.context));
                MODEL(GetLastError() == ERROR_INVALID_PARAMETER);
            }
            break;
        case 4: MODEL(!UmsThreadYield(NULL) && GetLastError() == ERROR_INVALID_PARAMETER); break;
        default: execute(s); break;
        }
    }
    left_early++;
}

/* Called outside scheduling mode, when no worker runs. */
static void change(slot *s)
{
    switch (s->place) {
    case NOWHERE:
        MODEL(!DeleteUmsThreadContext(s->w.context));
        if (roll(4) == 0) {
            MODEL(CreateUmsThreadContext(&s->w.context));
            worker *w = &s->w;
            MODEL(SetUmsThreadInformation(s->w.context, UmsThreadUserContext, &w, sizeof w));
            s->place = FRESH;
        } else {
            s->dice = roll(1000000);
            s->suspended = 0;
            s->place = LISTED;
            start_worker(&s->w, list, work);
        }
        break;
    case FRESH:
        MODEL(!ExecuteUmsThread(s->w.context) && GetLastError() == ERROR_NOT_SUPPORTED);
        MODEL(DeleteUmsThreadContext(s->w.context));
        s->place = NOWHERE;
        break;
    case OVER:
        end_worker(&s->w);
        s->place = NOWHERE;
        break;
    default: ask(s); break;
    }
    /* The memory of a deleted context may belong to another context now. Then the pointer is not
     * stale. */
    for (int i = 0; i < SLOTS; i++)
        for (int j = 0; j < SLOTS; j++)
            if (slots[i].place == NOWHERE && slots[j].place != NOWHERE &&
                slots[i].w.context == slots[j].w.context)
                slots[i].w.context = NULL;
}

static VOID NTAPI finish(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)payload;
    (void)param;
    if (reason == UmsSchedulerThreadYield)
        running->place = READY;
    running = NULL;
    for (;;) {
        int live = 0;
        take(0);
        for (int i = 0; i < SLOTS; i++) {
            slot *s = &slots[i];
            while (s->suspended > 0 && s->place == READY) {
                MODEL(ResumeThread(s->w.thread) == (DWORD)s->suspended);
                s->suspended--;
            }
            if (s->place == READY)
                execute(s);
            live += s->place == READY || s->place == LISTED;
        }
        if (live == 0)
            return;
        take(50);
    }
}

int main(int argc, char **argv)
{
    unsigned long long first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    int rounds = argc > 2 ? atoi(argv[2]) : 30;
    for (seed = first; seed < first + (argc > 1 ? 1 : 4); seed++) {
        dice = seed * 0x9e3779b97f4a7c15ull;
        memset(slots, 0, sizeof slots);
        MODEL(CreateUmsCompletionList(&list));
        for (int round = 0; round < rounds; round++) {
            for (int i = 0; i < 6; i++)
                change(&slots[roll(SLOTS)]);
            steps_left = (int)roll(60);
            MODEL(enter(list, proc, &seed));
            running = NULL;
        }
        MODEL(enter(list, finish, NULL));
        for (int i = 0; i < SLOTS; i++)
            if (slots[i].place != NOWHERE)
                change(&slots[i]);
        for (int i = 0; i < SLOTS; i++)
            MODEL(slots[i].place == NOWHERE);
        MODEL(DeleteUmsCompletionList(list));
    }
    printf("%ld executions tried, %ld items taken, left %ld times\n", executed, taken, left_early);
    puts("ok");
    return 0;
}
