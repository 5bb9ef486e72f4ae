//! NCCL's text of the last error: the variables whose values it omits, and changes by another thread.

use std::env;
use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;

use libnccl::config::Encryption;
use libnccl::sys::{Functions, ncclComm_t};
use libnccl::{Error, Nccl};
use libnccl_test_support::fake_nccl::{ErrorText, FakeNccl};

use crate::own_process::is_own;

/// Texts of NCCL 2.13.4 to 2.32.3.
#[test]
fn text_about_variables_of_nccl_has_their_values() {
    if !is_own(module_path!(), "text_about_variables_of_nccl_has_their_values") {
        return;
    }
    let fake = FakeNccl::new();
    fake.set_code("ncclSetEncryption", 2);
    let nccl = fake.nccl();
    let detail = |text: &str| {
        // NCCL never frees its text either.
        let text = Box::leak(CString::new(text).unwrap().into_boxed_c_str());
        fake.set(|fake| fake.error_text = ErrorText::Of(text));
        match nccl.set_encryption(Encryption::None) {
            Err(Error::Nccl { detail, .. }) => detail,
            other => panic!("{other:?}"),
        }
    };
    // SAFETY: no other thread of this process uses the environment.
    unsafe {
        env::remove_var("NCCL_SOCKET_IFNAME");
        env::remove_var("NCCL_SOCKET_FAMILY");
    }
    assert_eq!(
        &*detail("Bootstrap : no socket interface found"),
        "Bootstrap : no socket interface found (NCCL_SOCKET_IFNAME is not set, NCCL_SOCKET_FAMILY is not set)"
    );
    // SAFETY: as above.
    unsafe {
        env::set_var("NCCL_SOCKET_IFNAME", "\"eth0\" ");
        env::set_var("NCCL_COMM_ID", "nohost:99");
    }
    let interfaces = r#" (NCCL_SOCKET_IFNAME is "\"eth0\" ", NCCL_SOCKET_FAMILY is not set)"#;
    for (text, added) in [
        ("Bootstrap : no socket interface found", interfaces),
        ("NET/Socket : No usable listening interface found", interfaces),
        ("NET/Socket : no interface found", interfaces),
        ("NET/IB : No IP interface found.", interfaces),
        (
            "Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>",
            r#" (NCCL_COMM_ID is "nohost:99")"#,
        ),
        // The CPU backend's text has the value.
        (r#"invalid NCCL_COMM_ID "nohost:99": expected <ipv4>:<port>"#, ""),
        ("Cuda failure 'no device'", ""),
        ("", ""),
    ] {
        assert_eq!(&*detail(text), format!("{text}{added}"));
    }
}

/// Another thread changes the text meanwhile, between characters of one and of three bytes.
#[test]
fn text_that_another_thread_changes_is_valid_utf8() {
    const LENGTH: usize = 999;
    static BUFFER: [AtomicU8; LENGTH + 1] = [const { AtomicU8::new(0) }; LENGTH + 1];
    unsafe extern "C" fn text(_: ncclComm_t) -> *const c_char {
        BUFFER.as_ptr().cast()
    }
    let functions = Functions { ncclGetLastError: Some(text), ..*FakeNccl::new().nccl().as_raw() };
    // SAFETY: the fake's functions, and one with the signature of the header.
    let nccl = unsafe { Nccl::from_table("changing", functions) }.unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let texts = ["x".repeat(LENGTH), "\u{20ac}".repeat(LENGTH / 3)];
            for text in texts.iter().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                // The last byte stays zero.
                text.bytes().zip(&BUFFER).for_each(|(byte, to)| to.store(byte, Ordering::Relaxed));
            }
        });
        let mut texts = (0..2000).map(|_| nccl.last_error());
        let is_valid = texts.all(|text| std::str::from_utf8(text.as_bytes()).is_ok());
        is_over.store(true, Ordering::Relaxed);
        assert!(is_valid);
    });
}
