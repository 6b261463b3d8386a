/*
 * N schedulers share one list: each context is given to exactly one scheduler, and no two
 * schedulers run the same worker. The ready queue is shared too; it is an interlocked list.
 */
#include <unistd.h>

#include "kit.h"

enum { WORKERS_MAX = 64 };

typedef struct {
    SLIST_ENTRY entry;
    worker w;
    volatile LONG inside; /* more than 1: two schedulers run the worker */
    volatile LONG taken;  /* 1 while it is out of the list, or running */
    unsigned dice;
    int rounds;
} member;

static PUMS_COMPLETION_LIST list;
static SLIST_HEADER ready;
static member *members;
static int workers, rounds;
static volatile LONG over, duplicates, overlaps, executed;

static member *member_of(PUMS_CONTEXT context)
{
    return CONTAINING_RECORD(worker_of(context), member, w);
}

static DWORD WINAPI work(LPVOID arg)
{
    member *me = CONTAINING_RECORD(arg, member, w);
    for (me->rounds = 0; me->rounds < rounds; me->rounds++) {
        if (InterlockedIncrement(&me->inside) != 1)
            InterlockedIncrement(&overlaps);
        me->dice = me->dice * 1103515245u + 12345u;
        unsigned what = (me->dice >> 16) % 8;
        for (volatile unsigned i = 0; i < what * 50; i++)
            ;
        InterlockedDecrement(&me->inside);
        if (what == 0)
            Sleep(1);
        else if (what == 1)
            usleep(200);
        else
            CHECK(UmsThreadYield(NULL));
    }
    return (DWORD)me->rounds;
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)param;
    if (reason == UmsSchedulerThreadYield) {
        member *m = member_of((PUMS_CONTEXT)payload);
        InterlockedPushEntrySList(&ready, &m->entry);
    }
    while (over < workers) {
        PUMS_CONTEXT item = NULL;
        if (DequeueUmsCompletionListItems(list, QueryDepthSList(&ready) ? 0 : 2, &item)) {
            while (item) {
                PUMS_CONTEXT next = GetNextUmsListItem(item);
                member *m = member_of(item);
                if (is_terminated(item)) {
                    if (m->w.is_over++)
                        InterlockedIncrement(&duplicates);
                    InterlockedIncrement(&over);
                } else {
                    InterlockedPushEntrySList(&ready, &m->entry);
                }
                item = next;
            }
        }
        member *m = (member *)InterlockedPopEntrySList(&ready);
        if (m) {
            InterlockedIncrement(&executed);
            ExecuteUmsThread(m->w.context);
            CHECK(GetLastError() == ERROR_RETRY);
            InterlockedPushEntrySList(&ready, &m->entry);
        }
    }
}

static DWORD WINAPI schedule(LPVOID arg)
{
    CHECK(enter(list, proc, arg));
    return 1;
}

int main(int argc, char **argv)
{
    HANDLE threads[8];
    int schedulers = argc > 1 ? atoi(argv[1]) : 2;
    workers = argc > 2 ? atoi(argv[2]) : 16;
    rounds = argc > 3 ? atoi(argv[3]) : 100;
    CHECK(schedulers <= 8 && workers <= WORKERS_MAX);
    members = (member *)_aligned_malloc(sizeof(member) * (size_t)workers, 16);
    memset(members, 0, sizeof(member) * (size_t)workers);
    InitializeSListHead(&ready);
    CHECK(CreateUmsCompletionList(&list));
    for (int i = 0; i < workers; i++) {
        members[i].dice = (unsigned)i * 7919u + 1u;
        start_worker(&members[i].w, list, work);
    }
    for (int i = 0; i < schedulers; i++)
        CHECK((threads[i] = CreateThread(NULL, 0, schedule, NULL, 0, NULL)) != NULL);
    CHECK(WaitForMultipleObjects((DWORD)schedulers, threads, TRUE, 80000) == WAIT_OBJECT_0);
    for (int i = 0; i < schedulers; i++)
        CHECK(CloseHandle(threads[i]));
    for (int i = 0; i < workers; i++)
        CHECK(end_worker(&members[i].w) == (DWORD)rounds);
    CHECK(DeleteUmsCompletionList(list));
    printf("%d times executed, %d duplicates, %d overlaps\n", executed, duplicates, overlaps);
    CHECK(duplicates == 0 && overlaps == 0 && over == workers);
    _aligned_free(members);
    puts("ok");
    return 0;
}
