/*
 * N schedulers with one completion list: any free scheduler takes any ready worker.
 *
 *     cc -I<prefix>/include/ums/windows shared_list.c -lums -pthread && ./a.out [schedulers]
 *
 * Each scheduler is a thread. The list gives all its items to one of the schedulers, so the
 * schedulers share a stack of ready workers. The stack is an interlocked list, which takes no lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

#define WORKERS 12
#define ROUNDS 20
#define SCHEDULERS_MAX 8

typedef struct {
    SLIST_ENTRY entry; /* the first field, so that a pointer to the entry is a pointer to the worker */
    PUMS_CONTEXT context;
    HANDLE thread;
    int rounds;
} worker;

static PUMS_COMPLETION_LIST completed;
static SLIST_HEADER ready;
static worker *workers;
static volatile LONG ended;

static void fail(const char *what)
{
    printf("%s failed: error %u\n", what, (unsigned)GetLastError());
    exit(1);
}

static void make_ready(PUMS_CONTEXT context)
{
    worker *w = NULL;
    if (!QueryUmsThreadInformation(context, UmsThreadUserContext, &w, sizeof w, NULL))
        fail("QueryUmsThreadInformation");
    InterlockedPushEntrySList(&ready, &w->entry);
}

static VOID NTAPI scheduler(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)param;
    if (reason == UmsSchedulerThreadYield)
        make_ready((PUMS_CONTEXT)payload);
    while (ended < WORKERS) {
        PUMS_CONTEXT item = NULL;
        worker *w;
        /* Another scheduler may get all items, so no scheduler waits for a long time. */
        DequeueUmsCompletionListItems(completed, QueryDepthSList(&ready) ? 0 : 5, &item);
        while (item != NULL) {
            PUMS_CONTEXT next = GetNextUmsListItem(item);
            BOOLEAN is_over = FALSE;
            QueryUmsThreadInformation(item, UmsThreadIsTerminated, &is_over, sizeof is_over, NULL);
            if (is_over)
                InterlockedIncrement(&ended);
            else
                make_ready(item);
            item = next;
        }
        w = (worker *)InterlockedPopEntrySList(&ready);
        if (w == NULL)
            continue;
        ExecuteUmsThread(w->context);
        if (GetLastError() != ERROR_RETRY)
            fail("ExecuteUmsThread");
        InterlockedPushEntrySList(&ready, &w->entry);
    }
}

static DWORD WINAPI schedule(LPVOID arg)
{
    UMS_SCHEDULER_STARTUP_INFO info = { UMS_VERSION, NULL, scheduler, NULL };
    (void)arg;
    info.CompletionList = completed;
    return EnterUmsSchedulingMode(&info) ? 0 : GetLastError();
}

static DWORD WINAPI work(LPVOID arg)
{
    worker *me = (worker *)arg;
    for (; me->rounds < ROUNDS; me->rounds++) {
        if (me->rounds % 5 == 0)
            Sleep(1);
        else
            UmsThreadYield(NULL);
    }
    return 0;
}

static void start(worker *w)
{
    UMS_CREATE_THREAD_ATTRIBUTES ums = { UMS_VERSION, NULL, completed };
    SIZE_T size = 0;
    LPPROC_THREAD_ATTRIBUTE_LIST attributes;
    InitializeProcThreadAttributeList(NULL, 1, 0, &size);
    attributes = (LPPROC_THREAD_ATTRIBUTE_LIST)malloc(size);
    w->rounds = 0;
    if (!CreateUmsThreadContext(&w->context) ||
        !SetUmsThreadInformation(w->context, UmsThreadUserContext, &w, sizeof w))
        fail("a context");
    ums.UmsContext = w->context;
    if (!InitializeProcThreadAttributeList(attributes, 1, 0, &size) ||
        !UpdateProcThreadAttribute(attributes, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &ums,
                                   sizeof ums, NULL, NULL))
        fail("the attribute list");
    w->thread =
        CreateRemoteThreadEx(GetCurrentProcess(), NULL, 0, work, w, 0, attributes, NULL);
    if (w->thread == NULL)
        fail("CreateRemoteThreadEx");
    DeleteProcThreadAttributeList(attributes);
    free(attributes);
}

int main(int argc, char **argv)
{
    HANDLE schedulers[SCHEDULERS_MAX];
    int count = argc > 1 ? atoi(argv[1]) : 2, rounds = 0;

    if (count < 1 || count > SCHEDULERS_MAX)
        count = 2;
    InitializeSListHead(&ready);
    workers = (worker *)_aligned_malloc(WORKERS * sizeof *workers, MEMORY_ALLOCATION_ALIGNMENT);
    if (!CreateUmsCompletionList(&completed))
        fail("CreateUmsCompletionList");
    for (int i = 0; i < WORKERS; i++)
        start(&workers[i]);
    for (int i = 0; i < count; i++)
        schedulers[i] = CreateThread(NULL, 0, schedule, NULL, 0, NULL);
    WaitForMultipleObjects((DWORD)count, schedulers, TRUE, INFINITE);
    for (int i = 0; i < count; i++) {
        DWORD code = 1;
        if (!GetExitCodeThread(schedulers[i], &code) || code != 0)
            fail("a scheduler");
        CloseHandle(schedulers[i]);
    }
    for (int i = 0; i < WORKERS; i++) {
        rounds += workers[i].rounds;
        WaitForSingleObject(workers[i].thread, INFINITE);
        CloseHandle(workers[i].thread);
        DeleteUmsThreadContext(workers[i].context);
    }
    DeleteUmsCompletionList(completed);
    printf("%d workers did %d rounds on %d schedulers\n", WORKERS, rounds, count);
    _aligned_free(workers);
    return 0;
}
