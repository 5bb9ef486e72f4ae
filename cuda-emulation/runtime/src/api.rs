//! Definition of exported functions, and calls of the driver.

/// Exports functions of the runtime API. They return a status; an error becomes the thread's last error.
///
/// After `per_thread(stream)`, a function is exported a second time with the suffix `_ptsz`, for programs in which the null stream
/// is the thread's own.
///
/// `fn cudaX(...) = value;` returns the value of an expression. `fn cudaX = bind().cuX(...);` calls the driver's function with the
/// same arguments: after `bind` with a current context, after `get` without.
macro_rules! api {
    () => {};
    (
        $(#[$attribute:meta])* $(per_thread($stream:ident))?
        fn $name:ident = $with:ident().$function:ident $arguments:tt;
        $($rest:tt)*
    ) => {
        api! {
            $(#[$attribute])* $(per_thread($stream))?
            fn $name $arguments { call!($with()?, $function $arguments) }
            $($rest)*
        }
    };
    (
        $(#[$attribute:meta])* $(per_thread($stream:ident))?
        fn $name:ident $arguments:tt = $value:expr;
        $($rest:tt)*
    ) => {
        api! { $(#[$attribute])* $(per_thread($stream))? fn $name $arguments { $value } $($rest)* }
    };
    ($(#[$attribute:meta])* per_thread($stream:ident) fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        api!(@one [$(#[$attribute])*] $name $arguments $body);
        api!(@per_thread [$(#[$attribute])*] $stream $name $arguments);
        api! { $($rest)* }
    };
    ($(#[$attribute:meta])* fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        api!(@one [$(#[$attribute])*] $name $arguments $body);
        api! { $($rest)* }
    };
    (
        @one [$($attributes:tt)*]
        $name:ident ($($argument:ident: $type:ty $(=> $declared:ty)?),* $(,)?) $body:block
    ) => {
        $($attributes)*
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $crate::status::Status {
            let run = move || -> $crate::status::Result<()> {
                // SAFETY: the caller keeps the function's contract: pointers are null or valid as documented, and handles are
                // null or alive. The driver checks for null if the body does not.
                unsafe { $body }
            };
            $crate::status::record(run())
        }
    };
    (
        @per_thread [$($attributes:tt)*] $stream:ident
        $name:ident ($($argument:ident: $type:ty $(=> $declared:ty)?),* $(,)?)
    ) => {
        $($attributes)*
        const _: () = {
            #[unsafe(export_name = concat!(stringify!($name), "_ptsz"))]
            unsafe extern "C" fn per_thread($($argument: $type),*) -> $crate::status::Status {
                let $stream = if $stream.is_null() { $crate::stream::PER_THREAD } else { $stream };
                // SAFETY: the caller keeps the contract of the function without the suffix.
                unsafe { $name($($argument),*) }
            }
        };
    };
}

/// Calls a function of the driver, whose signature is compared with cudarc's bindings. Where the bindings declare an enum, a
/// program may pass any number. The enum is then written after `=>`.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:ident: $type:ty $(=> $declared:ty)?),* $(,)?)) => {{
        const _: unsafe fn($(call!(@declared $type $(=> $declared)?)),*) -> cudarc::driver::sys::CUresult =
            cudarc::driver::sys::$name;
        type Function = unsafe extern "C" fn($($type),*) -> $crate::status::Status;
        let driver: &$crate::driver::Driver = $driver;
        match driver.function($crate::driver::Index::$name) {
            Some(function) => {
                // SAFETY: the driver's function has this type, which is compared with the bindings.
                let function = unsafe { std::mem::transmute::<unsafe extern "C" fn(), Function>(function) };
                // SAFETY: the caller keeps the function's contract.
                unsafe { function($($argument),*) }.result()
            }
            None => Err($crate::unsupported::report(stringify!($name), ": libcuda.so.1 lacks it")),
        }
    }};
    (@declared $type:ty) => {
        $type
    };
    (@declared $type:ty => $declared:ty) => {
        $declared
    };
}
