# What the gate runs in which build; `make test-all` runs all tests in all builds. A new test joins the list of each
# sanitizer that could find something in it which the release build cannot.

# Whatever parses bytes of others, or counts them: frames, segments, seals, kernels at the ends of arrays.
set(tests_under_address,undefined
    test_adasum_kernels test_association test_backend_defaults test_capi test_chaos test_engine test_engine_failures
    test_engine_memory test_engine_fast_path test_engine_fast_moves test_engine_fast_sets test_engine_sets_that_go test_dispatcher test_notifier test_host_pool test_fork_guard test_cause
    test_device_wait test_fake_cuda test_fake_nccl test_contributions test_lanes
    test_foreign test_fusion test_fuzz test_integer_average test_kernels test_mesh test_nccl_failures test_peer_failures test_staged_failures
    test_local_backend test_negotiator test_negotiator_conflicts test_negotiator_ends test_negotiator_groups
    test_detector test_negotiator_cache test_note_exchange test_proposals test_operation_tags test_peer_copies test_rank_set test_records test_seal test_shm_channel
    test_shm_cross_memory test_shm_cross_memory_processes test_shm_processes test_shm_segment test_socket
    test_socket_channel test_survey test_trace_file test_wire)

# Whatever several threads do at the same time. Negotiation and plans are state machines of one thread.
set(tests_under_thread
    test_adasum test_alltoall test_capi test_chaos test_doorbell test_engine test_engine_direct test_engine_failures
    test_engine_absent test_engine_join test_engine_memory test_engine_fast_path test_engine_fast_moves test_engine_fast_order
    test_engine_fast_sets test_engine_sets_that_go test_engine_order test_engine_sets
    test_engine_survey test_mesh test_executor test_registry test_device_wait test_fake_cuda test_fake_nccl test_foreign test_hierarchical
    test_nccl test_nccl_failures test_peer test_peer_failures test_proposals test_operation_tags test_progress
    test_staged test_staged_failures
    test_records test_seal test_shm test_shm_allreduce test_shm_channel test_shm_cross_memory test_socket test_tcp
    test_timeline)

# Every test of the gate runs in release but these, which run under the address sanitizer: each asks one thread about its
# logic, and neither the optimiser nor the vector width nor the clock could make another answer of it.
set(tests_not_in_release
    test_detector test_contributions test_lanes test_fusion test_fuzz test_negotiator test_negotiator_cache test_negotiator_conflicts test_negotiator_ends
    test_negotiator_groups test_operation_tags test_proposals test_rank_set test_seal test_survey test_trace_file
    test_wire)

# Those that compute much themselves: they are optimised under the address sanitizer, too.
set(tests_that_compute
    test_association test_chaos test_engine_fast_moves test_engine_fast_path test_engine_fast_sets test_kernels
    test_records test_shm_cross_memory_processes test_shm_processes)

# Those that find a device: the libraries of tests/fakes are linked, and FARANDOLE_FAKES names their folder.
set(tests_with_fakes
    test_device_wait test_fake_cuda test_fake_nccl test_nccl test_nccl_failures test_peer test_peer_failures test_staged
    test_staged_failures)

# Under the sanitizers the cases of these run in four processes, those of others in one.
set(tests_that_take_long
    test_adasum test_backend_defaults test_engine test_engine_failures test_engine_fast_moves test_engine_fast_path
    test_engine_fast_sets test_engine_sets test_hierarchical)
