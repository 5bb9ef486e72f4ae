//! The one place that reads the environment, for the crates on this one too. In a program that has more rights than the user who
//! started it, the environment is that user's, and nothing of it is obeyed: a variable might choose a file that is written, an
//! address, or code.

use std::env;
use std::ffi::OsString;

/// Returns the value of a variable; `None` if it is not set, and in a program with more rights than its user.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    #[allow(clippy::disallowed_methods)] // Here alone.
    let value = env::var_os(name);
    value.filter(|_| !is_privileged())
}

/// Returns `true` if a variable has a value, which may not be one to obey.
#[must_use]
pub fn is_set(name: &str) -> bool {
    #[allow(clippy::disallowed_methods)] // Here alone.
    let value = env::var_os(name);
    value.is_some_and(|value| !value.is_empty())
}

/// Returns all variables; none in a program with more rights than its user.
pub fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    #[allow(clippy::disallowed_methods)] // Here alone.
    let all = env::vars_os();
    let is_own = !is_privileged();
    all.filter(move |_| is_own)
}

/// Returns `true` in a program with more rights than the user who started it: set-uid, set-gid, or with capabilities of its file.
#[must_use]
pub fn is_privileged() -> bool {
    #[cfg(target_os = "linux")]
    {
        const AT_SECURE: std::ffi::c_ulong = 23;
        #[allow(unsafe_code)] // Declares a safe function of the C library.
        unsafe extern "C" {
            safe fn getauxval(kind: std::ffi::c_ulong) -> std::ffi::c_ulong;
        }
        getauxval(AT_SECURE) != 0
    }
    #[cfg(not(target_os = "linux"))]
    false
}
