// Uses the header from C++, with lambdas and with a class for each kind of pointer.
#include <memory>
#include <string>
#include <vector>

#include "check.h"

int main(int argc, char **argv)
{
    std::unique_ptr<ums_node, int (*)(ums_node *)> node(node_of(argc, argv, 1), ums_node_free);
    std::vector<long> squares(10);
    auto square = [](void *arg) -> void * {
        long *n = static_cast<long *>(arg);
        ums_yield();
        *n *= *n;
        return n;
    };
    std::vector<ums_task *> tasks;
    for (size_t i = 0; i < squares.size(); i++) {
        squares[i] = static_cast<long>(i);
        tasks.push_back(nullptr);
        IS(0, ums_node_spawn(node.get(), square, &squares[i], &tasks.back()));
    }
    long sum = 0;
    for (ums_task *task : tasks) {
        void *result = nullptr;
        IS(0, ums_task_join(task, UMS_FOREVER, &result));
        sum += *static_cast<long *>(result);
    }
    IS(285, sum);

    // An exception that is caught inside the function has no effect outside.
    void *result = nullptr;
    auto catching = [](void *) -> void * {
        try {
            throw std::string("inside");
        } catch (const std::string &text) {
            return text == "inside" ? (void *)1 : nullptr;
        }
    };
    IS(0, ums_node_run(node.get(), catching, nullptr, &result));
    CHECK(result != nullptr);
    node.reset();
    puts("ok");
    return 0;
}
