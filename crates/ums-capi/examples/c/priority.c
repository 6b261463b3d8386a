/*
 * A priority scheduler: of the ready workers, the most urgent one runs. Workers of equal priority
 * take turns.
 *
 *     cc -I<prefix>/include/ums/windows priority.c -lums -pthread && ./a.out
 *
 * The application decides what a worker's priority means, so the priority is stored in the user
 * context. A worker gives way by calling UmsThreadYield. In this program the parameter is the
 * worker's request: NULL, or its new priority.
 */
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

#define WORKERS 6
#define LEVELS 3 /* 0 is the most urgent */

typedef struct worker {
    struct worker *next;
    PUMS_CONTEXT context;
    HANDLE thread;
    int number, level;
} worker;

static PUMS_COMPLETION_LIST completed;
static worker workers[WORKERS];
static worker *ready[LEVELS], **end[LEVELS];
static int ended;

static void fail(const char *what)
{
    printf("%s failed: error %u\n", what, (unsigned)GetLastError());
    exit(1);
}

static worker *worker_of(PUMS_CONTEXT context)
{
    worker *w = NULL;
    QueryUmsThreadInformation(context, UmsThreadUserContext, &w, sizeof w, NULL);
    return w;
}

static void make_ready(worker *w)
{
    if (ready[w->level] == NULL)
        end[w->level] = &ready[w->level];
    w->next = NULL;
    *end[w->level] = w;
    end[w->level] = &w->next;
}

static BOOL is_any_ready(void)
{
    for (int level = 0; level < LEVELS; level++)
        if (ready[level] != NULL)
            return TRUE;
    return FALSE;
}

static worker *most_urgent(void)
{
    for (int level = 0; level < LEVELS; level++)
        if (ready[level] != NULL) {
            worker *w = ready[level];
            ready[level] = w->next;
            return w;
        }
    return NULL;
}

static void take_completed(DWORD wait)
{
    PUMS_CONTEXT item = NULL;
    DequeueUmsCompletionListItems(completed, wait, &item); /* NULL if none came in time */
    while (item != NULL) {
        PUMS_CONTEXT next = GetNextUmsListItem(item);
        BOOLEAN is_over = FALSE;
        QueryUmsThreadInformation(item, UmsThreadIsTerminated, &is_over, sizeof is_over, NULL);
        if (is_over)
            ended++;
        else
            make_ready(worker_of(item));
        item = next;
    }
}

static VOID NTAPI scheduler(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    if (reason == UmsSchedulerThreadYield) {
        worker *w = worker_of((PUMS_CONTEXT)payload);
        if (param != NULL)
            w->level = (int)(ULONG_PTR)param;
        make_ready(w);
    }
    while (ended < WORKERS) {
        worker *w;
        take_completed(is_any_ready() ? 0 : INFINITE);
        w = most_urgent();
        if (w == NULL)
            continue;
        ExecuteUmsThread(w->context);
        if (GetLastError() != ERROR_RETRY)
            fail("ExecuteUmsThread");
        make_ready(w);
    }
}

static DWORD WINAPI work(LPVOID arg)
{
    worker *me = (worker *)arg;
    for (int step = 1; step <= 2; step++) {
        printf("worker %d of level %d, step %d\n", me->number, me->level, step);
        UmsThreadYield(NULL);
    }
    if (me->level == LEVELS - 1) {
        UmsThreadYield((PVOID)1); /* promoted */
        printf("worker %d has level %d now\n", me->number, me->level);
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

int main(void)
{
    UMS_SCHEDULER_STARTUP_INFO info = { UMS_VERSION, NULL, scheduler, NULL };
    if (!CreateUmsCompletionList(&completed))
        fail("CreateUmsCompletionList");
    for (int i = 0; i < WORKERS; i++) {
        workers[i].number = i;
        workers[i].level = i % LEVELS;
        start(&workers[i]);
    }
    info.CompletionList = completed;
    if (!EnterUmsSchedulingMode(&info))
        fail("EnterUmsSchedulingMode");
    for (int i = 0; i < WORKERS; i++) {
        WaitForSingleObject(workers[i].thread, INFINITE);
        CloseHandle(workers[i].thread);
        DeleteUmsThreadContext(workers[i].context);
    }
    DeleteUmsCompletionList(completed);
    printf("all %d workers have ended\n", WORKERS);
    return 0;
}
