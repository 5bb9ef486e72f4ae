//! Definition of exported functions.

/// Exports functions of the runtime API, which return a status and keep it as the thread's last error if it is one.
///
/// After `per_thread(stream)`, a function is exported a second time with the suffix `_ptsz`: for programs in which the
/// null stream is the thread's own.
macro_rules! api {
    () => {};
    ($(#[$attribute:meta])* per_thread($stream:ident) fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        api!(@one [$(#[$attribute])*] $name $arguments $body);
        api!(@per_thread [$(#[$attribute])*] $stream $name $arguments);
        api! { $($rest)* }
    };
    ($(#[$attribute:meta])* fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        api!(@one [$(#[$attribute])*] $name $arguments $body);
        api! { $($rest)* }
    };
    (@one [$($attributes:tt)*] $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $($attributes)*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $crate::status::Status {
            let run = move || -> $crate::status::Result<()> {
                // SAFETY: the caller keeps the function's contract: pointers are null or valid for what it documents,
                // and handles are null or alive. The driver checks for null what the bodies do not.
                unsafe { $body }
            };
            $crate::last_error::record(run())
        }
    };
    (@per_thread [$($attributes:tt)*] $stream:ident $name:ident ($($argument:ident: $type:ty),* $(,)?)) => {
        $($attributes)*
        const _: () = {
            #[unsafe(export_name = concat!(stringify!($name), "_ptsz"))]
            unsafe extern "C" fn per_thread($($argument: $type),*) -> $crate::status::Status {
                let $stream = $crate::stream::or_per_thread($stream);
                // SAFETY: the caller keeps the contract of the function without the suffix.
                unsafe { $name($($argument),*) }
            }
        };
    };
}
