/* Creates a worker and runs it, or says that this was refused. */
#include "kit.h"

static PUMS_COMPLETION_LIST list;

static DWORD WINAPI nothing(LPVOID arg)
{
    (void)arg;
    return 0;
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)payload;
    if (reason == UmsSchedulerStartup) {
        ExecuteUmsThread((PUMS_CONTEXT)param);
        CHECK(!"executed");
    }
}

int main(void)
{
    SIZE_T size = 0;
    PUMS_CONTEXT context = NULL, item = NULL;
    CHECK(CreateUmsCompletionList(&list) && CreateUmsThreadContext(&context));
    InitializeProcThreadAttributeList(NULL, 1, 0, &size);
    LPPROC_THREAD_ATTRIBUTE_LIST attributes = (LPPROC_THREAD_ATTRIBUTE_LIST)malloc(size);
    UMS_CREATE_THREAD_ATTRIBUTES ums = { UMS_VERSION, context, list };
    CHECK(InitializeProcThreadAttributeList(attributes, 1, 0, &size));
    CHECK(UpdateProcThreadAttribute(attributes, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &ums,
                                    sizeof ums, NULL, NULL));
    HANDLE thread = CreateRemoteThreadEx(GetCurrentProcess(), NULL, 0, nothing, NULL, 0, attributes,
                                         NULL);
    UMS_SCHEDULER_STARTUP_INFO info = { UMS_VERSION, list, proc, context };
    if (thread == NULL) {
        CHECK(GetLastError() == ERROR_INVALID_PARAMETER);
        CHECK(DequeueUmsCompletionListItems(list, 0, &item) && item == NULL);
        CHECK(DeleteUmsThreadContext(context) && DeleteUmsCompletionList(list));
        puts("refused");
        return 0;
    }
    CHECK(DequeueUmsCompletionListItems(list, 0, &item) && item == context);
    CHECK(GetNextUmsListItem(item) == NULL);
    CHECK(EnterUmsSchedulingMode(&info));
    puts("accepted");
    return 0;
}
