//! The only code that reads environment variables, also for the crates that depend on this one. A program with more rights than
//! the user who started it ignores them: otherwise the user could choose a file to write, an address, or code to run.
#![allow(clippy::disallowed_methods)] // Only here.

use std::env;
use std::ffi::OsString;

/// Returns the value of an environment variable; `None` if it is not set or the program is [privileged](is_privileged).
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|_| !is_privileged())
}

/// Returns whether an environment variable is set and not empty, even if the program is [privileged](is_privileged).
#[must_use]
pub fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Returns all environment variables. Returns none if the program is [privileged](is_privileged).
pub fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    let is_ignored = is_privileged();
    env::vars_os().filter(move |_| !is_ignored)
}

/// Returns whether the program has more rights than the user who started it: set-uid, set-gid, or file capabilities.
#[must_use]
pub fn is_privileged() -> bool {
    #[cfg(target_os = "linux")]
    {
        const AT_SECURE: std::ffi::c_ulong = 23;
        #[allow(unsafe_code)] // Declares a safe function.
        unsafe extern "C" {
            safe fn getauxval(kind: std::ffi::c_ulong) -> std::ffi::c_ulong;
        }
        getauxval(AT_SECURE) != 0
    }
    #[cfg(not(target_os = "linux"))]
    false
}
