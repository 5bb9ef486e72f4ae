//! The interface that `nccl doctor` names, against the one that a real NCCL takes, in network namespaces.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{NCCL, list, run};

/// Interfaces, as arguments of `link`, and environments in which NCCL chooses among them.
struct Layout {
    links: &'static [&'static str],
    environments: &'static [&'static [(&'static str, &'static str)]],
}

const NAMES: &str = "NCCL_SOCKET_IFNAME";
const FAMILY: &str = "NCCL_SOCKET_FAMILY";
const COMM_ID: &str = "NCCL_COMM_ID";
/// Its value here is the content of the file that it names.
const CONF_FILE: &str = "NCCL_CONF_FILE";

/// Makes an interface: its name; `up`, `down`, or `unplugged`, which is up without a carrier; and addresses.
const LINK: &str = "
link() {
    name=$1 state=$2
    shift 2
    if [ \"$name\" != lo ]; then
        ip link add \"$name\" type veth peer name \"peer$name\"
        ip link set \"$name\" addrgenmode none
        [ $state = unplugged ] || ip link set \"peer$name\" addrgenmode none up
    fi
    for address; do ip address add \"$address\" dev \"$name\" $(case $address in *:*) echo nodad;; esac); done
    [ $state = down ] || ip link set \"$name\" up
}
";

const LAYOUTS: &[Layout] = &[
    Layout {
        links: &[
            "lo up",
            "docker0 up 172.17.0.1/16",
            "virbr0 up 192.168.122.1/24",
            "eth0 up 10.77.0.1/24 10.77.0.2/24",
            "eth1 up",
            "myib0 up 10.78.0.1/24",
        ],
        environments: &[
            &[],
            &[(NAMES, "^docker0")],
            &[(NAMES, "^docker,eth,my")],
            &[(NAMES, "^docker,lo")],
            &[(NAMES, "^lo")],
            &[(NAMES, "eth1")],
            &[(NAMES, "eth")],
            &[(NAMES, "docker0")],
            &[(NAMES, "virbr")],
            &[(NAMES, "=eth0")],
            &[(NAMES, "=eth")],
            &[(NAMES, "myib0,eth0")],
            &[(NAMES, " =eth0")],
            &[(NAMES, "eth0 ")],
            &[(NAMES, "\"eth0\"")],
            &[(NAMES, "eth0, docker0")],
            &[(NAMES, "eth0;docker0")],
            &[(NAMES, "lo,")],
            &[(NAMES, "lo")],
            &[(NAMES, "eth99")],
            &[(NAMES, "")],
            &[(NAMES, "^")],
            &[(NAMES, "^=")],
            &[(NAMES, "e")],
            &[(NAMES, ",,")],
            &[(NAMES, "10.77.0.1")],
            &[(NAMES, "ETH0")],
            &[(NAMES, "^=eth0,lo")],
            &[(NAMES, "eth0:1")],
            &[(NAMES, "a,b,c,d,f,g,h,i,j,k,m,n,o,p,q,r,eth0")],
            &[(FAMILY, "AF_INET6")],
            &[(FAMILY, "AF_INET6"), (NAMES, "eth0")],
            &[(FAMILY, "AF_INET")],
            &[(FAMILY, "ipv4")],
            &[(COMM_ID, "10.78.0.9:5000")],
            &[(COMM_ID, "10.78.0.9:5000"), (NAMES, "eth0")],
            &[(COMM_ID, "10.99.0.9:5000")],
            &[(COMM_ID, "127.0.0.1:5000")],
            &[(COMM_ID, "10.77.0.1")],
            &[(COMM_ID, "")],
            &[(COMM_ID, "x")],
            &[(COMM_ID, "no such host:5000")],
            &[(COMM_ID, "[fd00::1:5000")],
            &[(COMM_ID, ":5000")],
            &[(CONF_FILE, "NCCL_SOCKET_IFNAME=myib0\n")],
            &[(CONF_FILE, "# NCCL_SOCKET_IFNAME=eth0\n\nNCCL_SOCKET_IFNAME=myib0")],
            &[(CONF_FILE, "NCCL_SOCKET_IFNAME=myib0\r\n")],
            &[(CONF_FILE, "NCCL_SOCKET_IFNAME=\"myib0\"\n")],
            &[(CONF_FILE, "NCCL_SOCKET_IFNAME=myib0 \n")],
            &[(CONF_FILE, "NCCL_SOCKET_IFNAME =myib0\n")],
            &[(CONF_FILE, "export NCCL_SOCKET_IFNAME=myib0\n")],
            &[(CONF_FILE, "NCCL_SOCKET_IFNAME=myib0\nNCCL_SOCKET_IFNAME=eth0\n")],
            &[(CONF_FILE, "NCCL_SOCKET_IFNAME=myib0\n"), (NAMES, "eth0")],
            &[(CONF_FILE, "NCCL_COMM_ID=10.78.0.9:5000\n")],
        ],
    },
    Layout {
        links: &[
            "lo up",
            "eth0 down 10.77.0.1/24",
            "eth1 unplugged 10.78.0.1/24",
            "eth2 up 10.79.0.1/24",
            "docker0 unplugged 172.17.0.1/16",
        ],
        environments: &[
            &[],
            &[(NAMES, "eth0")],
            &[(NAMES, "eth1")],
            &[(NAMES, "eth")],
            &[(NAMES, "docker")],
            &[(COMM_ID, "10.77.0.9:5000")],
        ],
    },
    Layout {
        links: &["lo up", "eth0 down 10.77.0.1/24", "eth1 unplugged 10.78.0.1/24"],
        environments: &[&[], &[(NAMES, "^docker")]],
    },
    Layout {
        links: &[
            "lo up",
            "eth0 up 10.77.0.1/24",
            "ib0 up",
            "ib1 up 10.80.0.1/24 fd80::1/64",
            "ibs2 up 10.81.0.1/24",
        ],
        environments: &[
            &[],
            &[(FAMILY, "AF_INET6")],
            &[(NAMES, "=ib0,eth0")],
            &[(COMM_ID, "10.77.0.2:5000")],
        ],
    },
    Layout {
        links: &[
            "lo up",
            "eth0 up fd77::1/64 fe80::77/64",
            "eth1 up 10.78.0.1/24 fd78::1/64",
            "eth2 up fe80::79/64",
        ],
        environments: &[
            &[],
            &[(NAMES, "eth0")],
            &[(NAMES, "eth2")],
            &[(FAMILY, "AF_INET6")],
            &[(FAMILY, "AF_INET")],
            &[(FAMILY, "AF_INET"), (NAMES, "eth0")],
            &[(COMM_ID, "[fd78::5]:5000")],
            &[(COMM_ID, "[fe80::5%eth2]:5000")],
            &[(COMM_ID, "[fe80::5%eth0]:5000")],
            &[(COMM_ID, "[::1]:5000")],
        ],
    },
    Layout {
        links: &["lo up", "virbr0 up 192.168.122.1/24"],
        environments: &[&[], &[(NAMES, "^lo")], &[(FAMILY, "AF_INET6")]],
    },
    Layout { links: &["lo up", "docker0 up 172.17.0.1/16"], environments: &[&[], &[(NAMES, "^docker")]] },
    Layout { links: &["lo up"], environments: &[&[], &[(NAMES, "lo")], &[(FAMILY, "AF_INET6")]] },
    Layout { links: &["lo up 10.99.0.1/32 fd99::1/128"], environments: &[&[], &[(FAMILY, "AF_INET6")]] },
    Layout { links: &["eth1 up"], environments: &[&[], &[(COMM_ID, "127.0.0.1:5000")]] },
];

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns the script that makes a layout, and runs the doctor in each environment.
fn script(layout: &Layout, library: &str, program: &Path, folder: &Path) -> String {
    let mut script = format!("set -e\n{LINK}");
    let mut line = |text: String| writeln!(script, "{text}").expect("a string");
    layout.links.iter().for_each(|link| line(format!("link {link}")));
    for (index, environment) in layout.environments.iter().enumerate() {
        let file = folder.join(format!("{index}.conf"));
        let variable = |(name, value): &(&str, &str)| {
            if *name != CONF_FILE {
                return quoted(&format!("{name}={value}"));
            }
            fs::write(&file, value).expect("it is writable");
            quoted(&format!("{name}={}", file.display()))
        };
        let variables = environment.iter().map(variable).collect::<Vec<_>>().join(" ");
        let folder = folder.display();
        let (library, program) = (quoted(library), program.display());
        let environment = format!("env -i HOME=/nonexistent {variables}");
        line(format!(
            "{environment} {NCCL} doctor --json --library {library} >{folder}/{index}.json 2>&1 || [ $? = 1 ]"
        ));
        line(format!(
            "{environment} NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL {program} {library} >{folder}/{index}.log 2>&1"
        ));
    }
    script
}

/// Returns the interface and its address in the log of a library.
fn in_log(log: &str) -> Option<(&str, &str)> {
    let line = log.lines().find(|line| line.contains("Bootstrap"))?;
    let (name, address) = line.split_once("Using ")?.1.split_once(':')?;
    let address = address.split(['<', '%']).next()?;
    Some((name, address))
}

/// Compares the doctor's report with an id that the library makes in another process. Returns the difference.
fn difference(report: &Value, log: &str, names_id: bool) -> Option<String> {
    let id = &report["library"]["unique_id"];
    let section = list(&report["sections"]).iter().find(|section| section["name"] == "network")?;
    let findings = list(&section["findings"]);
    let says = |part: &str| findings.iter().any(|finding| finding["text"].as_str().unwrap().contains(part));
    let Some(made) = log.lines().find_map(|line| line.strip_prefix("address ")) else {
        let has_problem = findings.iter().any(|finding| finding["level"] == "problem");
        let is_same = id["ok"] == false && has_problem;
        return (!is_same).then(|| "the library makes no id".into());
    };
    if id["address"] != made {
        return Some(format!("the id has {made}"));
    }
    let Some((name, address)) = in_log(log) else { return Some("the log names no interface".into()) };
    let text = match names_id && made != address {
        true => format!("ranks meet at {made}; this machine uses {address} ({name})"),
        false => format!("ranks meet at {made} ({name})"),
    };
    (!says(&text)).then(|| format!("the library uses {name} at {address}"))
}

/// A program that makes an id, and prints the address in it: the only one of this machine's that its bytes contain.
const PROGRAM: &str = r#"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    char id[128], text[64];
    int (*make)(char *) = (int (*)(char *))dlsym(dlopen(argv[1], RTLD_NOW), "ncclGetUniqueId");
    if (make(id)) return 0;
    // Before or behind a random number of 8 bytes, whose family would need padding of zeros.
    for (int at = 0; at <= 8; at += 8) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)(id + at);
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(id + at);
        if (v4->sin_family == AF_INET && !memcmp(v4->sin_zero, (char[8]){0}, 8))
            return !printf("address %s\n", inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text));
        if (v6->sin6_family == AF_INET6 && !v6->sin6_flowinfo)
            return !printf("address %s\n", inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text));
    }
    return 1;
}
"#;

/// Returns the library that `LIBNCCL_TEST_LIBRARY` names, or the cache's libraries of these versions. The source of the doctor
/// names neither 2.16.5 nor 2.31.2.
fn libraries() -> Vec<PathBuf> {
    if let Some(library) = std::env::var_os("LIBNCCL_TEST_LIBRARY") {
        return vec![library.into()];
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let versions = ["2.13.4", "2.16.5", "2.18.3", "2.28.9", "2.31.2", "2.32.3"].into_iter();
    let files = versions.map(|version| home.join(format!(".cache/libnccl/{version}/lib/libnccl.so.2")));
    files.filter(|file| file.exists()).collect()
}

/// In namespaces of an own user, so that it needs no rights.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c"]);
    command
}

#[test]
#[ignore = "needs `ip`, network namespaces, and NCCL in ~/.cache/libnccl or named by LIBNCCL_TEST_LIBRARY"]
fn interface_is_that_of_a_real_library() {
    let libraries = libraries();
    let can = unshare().arg("ip link add probe type veth peer name peerprobe").output();
    if libraries.is_empty() || !can.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: interface_is_that_of_a_real_library, which needs NCCL, `ip` and network namespaces"
        );
        return;
    }
    let build = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (build.path().join("id.c"), build.path().join("id"));
    fs::write(&source, PROGRAM).expect("it is writable");
    run(Command::new("cc").arg("-o").args([&program, &source]).arg("-ldl"), 0);
    for library in libraries {
        compare(&library.display().to_string(), &program);
    }
}

fn compare(library: &str, program: &Path) {
    let mut differences = Vec::new();
    for layout in LAYOUTS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        run(unshare().arg(script(layout, library, program, folder.path())), 0);
        for (index, environment) in layout.environments.iter().enumerate() {
            let read = |kind: &str| fs::read_to_string(folder.path().join(format!("{index}.{kind}")));
            let report: Value = serde_json::from_str(&read("json").expect("a report")).expect("JSON");
            let names_id =
                environment.iter().any(|(name, value)| *name == COMM_ID || value.contains(COMM_ID));
            if let Some(difference) = difference(&report, &read("log").expect("a log"), names_id) {
                let network = list(&report["sections"]).iter().find(|section| section["name"] == "network");
                differences.push(format!(
                    "{:?} {environment:?}: {difference}: {} {network:#?}",
                    layout.links, report["library"]["unique_id"]
                ));
            }
        }
    }
    assert!(differences.is_empty(), "{library}: {}", differences.join("\n"));
    let layouts: usize = LAYOUTS.iter().map(|layout| layout.environments.len()).sum();
    assert!(layouts >= 40, "{layouts}");
}
