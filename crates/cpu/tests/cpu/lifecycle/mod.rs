//! Lifecycles of communicators: how they are created from ids and from each other, and how they end.

mod calls;
mod children;
mod init;
mod nonblocking;
mod resource_limits;
mod teardown;

rank_tasks! {
    "derive_out_of_descriptors" => resource_limits::derive_out_of_descriptors,
    "grow" => children::join_as_new_rank,
    "hang" => calls::hang,
    "init_beyond_file_size_limit" => resource_limits::init_beyond_file_size_limit,
    "init_out_of_descriptors" => resource_limits::init_out_of_descriptors,
    "log" => init::log_lifecycle,
    "without_threads" => resource_limits::make_calls_without_threads,
}
