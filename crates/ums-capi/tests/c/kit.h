/*
 * Used by all programs with a scheduler: a worker with its context, and a ready queue.
 *
 * The functions that an entry point calls neither allocate nor lock: the workers themselves are
 * linked into the queue, and a worker is found through the user context of its worker context.
 */
#ifndef KIT_H
#define KIT_H

#include "wcheck.h"

typedef struct worker {
    PUMS_CONTEXT context;
    HANDLE thread;
    struct worker *next;
    int number;
    int is_over;
    void *arg;
} worker;

typedef struct queue {
    worker *first, **end;
} queue;

static inline void push(queue *q, worker *w)
{
    if (q->first == NULL)
        q->end = &q->first;
    w->next = NULL;
    *q->end = w;
    q->end = &w->next;
}

static inline worker *pop(queue *q)
{
    worker *w = q->first;
    if (w)
        q->first = w->next;
    return w;
}

static inline worker *worker_of(PUMS_CONTEXT context)
{
    worker *w = NULL;
    ULONG length = 0;
    CHECK(QueryUmsThreadInformation(context, UmsThreadUserContext, &w, sizeof w, &length));
    CHECK(length == sizeof w && w->context == context);
    return w;
}

static inline int is_terminated(PUMS_CONTEXT context)
{
    BOOLEAN yes = 0;
    CHECK(QueryUmsThreadInformation(context, UmsThreadIsTerminated, &yes, sizeof yes, NULL));
    return yes;
}

/* Creates a worker on this list, which runs `start` with itself as the argument. */
static inline void start_worker(worker *w, PUMS_COMPLETION_LIST list, LPTHREAD_START_ROUTINE start)
{
    UMS_CREATE_THREAD_ATTRIBUTES ums = { UMS_VERSION, NULL, list };
    SIZE_T size = 0;
    InitializeProcThreadAttributeList(NULL, 1, 0, &size);
    LPPROC_THREAD_ATTRIBUTE_LIST attributes = (LPPROC_THREAD_ATTRIBUTE_LIST)malloc(size);
    w->is_over = 0;
    CHECK(CreateUmsThreadContext(&w->context));
    CHECK(SetUmsThreadInformation(w->context, UmsThreadUserContext, &w, sizeof w));
    ums.UmsContext = w->context;
    CHECK(InitializeProcThreadAttributeList(attributes, 1, 0, &size));
    CHECK(UpdateProcThreadAttribute(attributes, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &ums,
                                    sizeof ums, NULL, NULL));
    w->thread = CreateRemoteThreadEx(GetCurrentProcess(), NULL, 0, start, w, 0, attributes, NULL);
    CHECK(w->thread != NULL);
    DeleteProcThreadAttributeList(attributes);
    free(attributes);
}

/* Moves all workers from the completion list to the queue. Terminated workers are not queued.
 * Returns how many there were. */
static inline int drain(PUMS_COMPLETION_LIST list, DWORD ms, queue *ready)
{
    PUMS_CONTEXT context = NULL;
    int over = 0;
    CHECK(DequeueUmsCompletionListItems(list, ms, &context));
    while (context) {
        PUMS_CONTEXT next = GetNextUmsListItem(context);
        worker *w = worker_of(context);
        if (is_terminated(context)) {
            CHECK(!w->is_over);
            w->is_over = 1;
            over++;
        } else {
            push(ready, w);
        }
        context = next;
    }
    return over;
}

/* Frees a worker that has ended: waits for its thread, and deletes its context. */
static inline DWORD end_worker(worker *w)
{
    DWORD code = STILL_ACTIVE;
    CHECK(WaitForSingleObject(w->thread, 30000) == WAIT_OBJECT_0);
    CHECK(GetExitCodeThread(w->thread, &code));
    CHECK(CloseHandle(w->thread));
    CHECK(DeleteUmsThreadContext(w->context));
    return code;
}

static inline BOOL enter(PUMS_COMPLETION_LIST list, PUMS_SCHEDULER_ENTRY_POINT proc, PVOID param)
{
    UMS_SCHEDULER_STARTUP_INFO info;
    info.UmsVersion = UMS_VERSION;
    info.CompletionList = list;
    info.SchedulerProc = proc;
    info.SchedulerParam = param;
    return EnterUmsSchedulingMode(&info);
}

#endif
