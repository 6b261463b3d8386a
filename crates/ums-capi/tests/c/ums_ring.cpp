// The yield ring: N workers yield M times each. Written like a typical C++ program, with its own
// classes.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include <windows.h>

#define CHECK(what) \
    if (!(what)) { std::printf("%s:%d: %s (error %u)\n", __FILE__, __LINE__, #what, \
                               (unsigned)GetLastError()); std::exit(1); }

namespace {

class CompletionList {
public:
    CompletionList() { CHECK(::CreateUmsCompletionList(&list_)); }
    ~CompletionList() { CHECK(::DeleteUmsCompletionList(list_)); }
    operator PUMS_COMPLETION_LIST() const { return list_; }

private:
    PUMS_COMPLETION_LIST list_ = nullptr;
};

class AttributeList {
public:
    AttributeList()
    {
        SIZE_T size = 0;
        ::InitializeProcThreadAttributeList(nullptr, 1, 0, &size);
        memory_.reset(new BYTE[size]);
        CHECK(::InitializeProcThreadAttributeList(*this, 1, 0, &size));
    }
    ~AttributeList() { ::DeleteProcThreadAttributeList(*this); }
    operator LPPROC_THREAD_ATTRIBUTE_LIST() const
    {
        return reinterpret_cast<LPPROC_THREAD_ATTRIBUTE_LIST>(memory_.get());
    }

private:
    std::unique_ptr<BYTE[]> memory_;
};

class Worker {
public:
    Worker(const CompletionList &list, LPTHREAD_START_ROUTINE routine, LPVOID arg)
    {
        CHECK(::CreateUmsThreadContext(&context_));
        UMS_CREATE_THREAD_ATTRIBUTES ums = {};
        ums.UmsVersion = UMS_VERSION;
        ums.UmsContext = context_;
        ums.UmsCompletionList = list;
        AttributeList attributes;
        CHECK(::UpdateProcThreadAttribute(attributes, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &ums,
                                          sizeof(ums), nullptr, nullptr));
        thread_ = ::CreateRemoteThreadEx(::GetCurrentProcess(), nullptr, 0, routine, arg,
                                         STACK_SIZE_PARAM_IS_A_RESERVATION, attributes, nullptr);
        CHECK(thread_ != nullptr);
    }
    ~Worker()
    {
        CHECK(::WaitForSingleObject(thread_, 30000) == WAIT_OBJECT_0);
        CHECK(::CloseHandle(thread_));
        CHECK(::DeleteUmsThreadContext(context_));
    }
    Worker(const Worker &) = delete;

private:
    PUMS_CONTEXT context_ = nullptr;
    HANDLE thread_ = nullptr;
};

struct Ring {
    explicit Ring(size_t workers) : ready(workers), left(workers) {}

    void put(PUMS_CONTEXT context) { ready[(first + count++) % ready.size()] = context; }
    PUMS_CONTEXT take()
    {
        PUMS_CONTEXT context = ready[first];
        first = (first + 1) % ready.size();
        count--;
        return context;
    }

    CompletionList list;
    std::vector<PUMS_CONTEXT> ready; // its size is fixed: an entry point must not allocate
    size_t first = 0, count = 0, left;
    LONGLONG yields = 0;
};

Ring *ring;
LONG yields_each;

void collect(DWORD ms)
{
    PUMS_CONTEXT item = nullptr;
    CHECK(::DequeueUmsCompletionListItems(ring->list, ms, &item));
    for (PUMS_CONTEXT next; item != nullptr; item = next) {
        next = ::GetNextUmsListItem(item);
        BOOLEAN over = FALSE;
        CHECK(::QueryUmsThreadInformation(item, UmsThreadIsTerminated, &over, sizeof(over), nullptr));
        if (over)
            ring->left--;
        else
            ring->put(item);
    }
}

void NTAPI schedule(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID)
{
    if (reason == UmsSchedulerThreadYield) {
        ring->yields++;
        ring->put(reinterpret_cast<PUMS_CONTEXT>(payload));
    }
    if (ring->count == 0)
        collect(0);
    while (ring->left > 0) {
        if (ring->count == 0) {
            collect(INFINITE);
            continue;
        }
        PUMS_CONTEXT next = ring->take();
        ::ExecuteUmsThread(next);
        CHECK(::GetLastError() == ERROR_RETRY);
        ring->put(next);
    }
}

DWORD WINAPI turn(LPVOID)
{
    for (LONG i = 0; i < yields_each; i++)
        CHECK(::UmsThreadYield(nullptr));
    return 0;
}

// As functions of the global namespace, with the types that programs pass.
void qualified_names()
{
    LONG n = 1;
    PVOID p = nullptr;
    ULONG index = 0;
    unsigned long wide = 0;
    CHECK(::InterlockedCompareExchange(&n, 5, 1) == 1 && n == 5);
    CHECK(::InterlockedCompareExchangePointer(&p, &n, NULL) == NULL && p == &n);
    CHECK(!::InterlockedBitTestAndSet(&n, 1) && ::InterlockedBitTestAndReset(&n, 0) && n == 6);
    CHECK(::_BitScanForward(&index, 8) && index == 3 && !::BitScanReverse(&index, 0));
    CHECK(::_BitScanReverse64(&wide, 1ull << 40) && wide == 40);
    ::OutputDebugStringA("");
}

} // namespace

int main(int argc, char **argv)
{
    qualified_names();
    size_t workers = argc > 1 ? static_cast<size_t>(std::atoi(argv[1])) : 10;
    yields_each = argc > 2 ? std::atoi(argv[2]) : 200;
    Ring made(workers);
    ring = &made;
    {
        std::deque<Worker> all;
        for (size_t i = 0; i < workers; i++)
            all.emplace_back(made.list, turn, nullptr);
        LARGE_INTEGER before, after, frequency;
        UMS_SCHEDULER_STARTUP_INFO info = { UMS_VERSION, made.list, schedule, nullptr };
        ::QueryPerformanceFrequency(&frequency);
        ::QueryPerformanceCounter(&before);
        CHECK(::EnterUmsSchedulingMode(&info));
        ::QueryPerformanceCounter(&after);
        double ns = static_cast<double>(after.QuadPart - before.QuadPart) * 1e9
                    / static_cast<double>(frequency.QuadPart);
        std::printf("%zu workers, %lld yields, %.0f ns per yield\n", workers, made.yields,
                    ns / static_cast<double>(made.yields));
    }
    CHECK(made.yields == static_cast<LONGLONG>(workers) * yields_each && made.left == 0);
    std::puts("ok");
    return 0;
}
