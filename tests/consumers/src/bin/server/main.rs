//! A server of tensors for each device, in the shape of burn's and cubecl's: client threads share it, its communicators
//! are in a map by their devices, and the type of the elements is known at run time only.
//!
//! The argument is `before` or `after`. Prints the tensors that each device has in the end.

#![deny(unsafe_code)]

mod after;
mod before;
mod server;

use std::sync::{Barrier, Mutex};
use std::thread;

use server::{Result, Server};

const DEVICES: [usize; 4] = [0, 1, 2, 3];

/// The elements of the tensors 0 to 2.
const ELEMENTS: [&str; 3] = ["f32", "i64", "bf16"];

/// The tensor that is passed to the device's neighbour, and the one that comes from there.
const PASSED: [u32; 2] = [3, 4];

fn main() -> Result {
    match std::env::args().nth(1).as_deref() {
        Some("before") => run::<before::Server>(),
        Some("after") => run::<after::Server>(),
        other => Err(format!("the form is {other:?}; expected before or after").into()),
    }
}

/// Runs two clients for each device: one for all devices, and one for its half of them.
fn run<S: Server>() -> Result {
    let sums_are_enqueued = Barrier::new(2 * DEVICES.len());
    let devices = on_threads(|device| {
        let server = Mutex::new(S::start(device)?);
        let half = &DEVICES[device / 2 * 2..][..2];
        lock(&server).connect(&DEVICES)?;
        lock(&server).connect(half)?;
        thread::scope(|scope| {
            let clients = [
                scope.spawn(|| sum(&server, device, &sums_are_enqueued)),
                scope.spawn(|| pass(&server, device, half, &sums_are_enqueued)),
            ];
            clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))
        })?;
        let mut text = String::new();
        for (tensor, element) in ELEMENTS.iter().enumerate() {
            let values = decode(element, &lock(&server).read(tensor as u32)?);
            text += &format!("device {device}, {element}: {values:?}\n");
        }
        text += &format!("device {device}, passed: {:?}\n", lock(&server).read(PASSED[1])?);
        // The server ends when all of them are done.
        Ok((server, text))
    })?;
    devices.iter().for_each(|(_, text)| print!("{text}"));
    Ok(())
}

/// Writes a tensor of each type, and sums it over all devices.
fn sum(server: &Mutex<impl Server>, device: usize, are_enqueued: &Barrier) -> Result {
    let result = ELEMENTS.iter().enumerate().try_for_each(|(tensor, element)| {
        let bytes = encode(element, &[1.0, device as f32, -2.5 * device as f32]);
        lock(server).write(tensor as u32, element, &bytes)?;
        lock(server).all_reduce(tensor as u32, &DEVICES)
    });
    are_enqueued.wait();
    result
}

/// Passes bytes from the first device of a half to the second, after the sums: operations of several communicators come in
/// one order on all devices.
fn pass(server: &Mutex<impl Server>, device: usize, half: &[usize], sums_are_enqueued: &Barrier) -> Result {
    let [own, other] = PASSED;
    let written = lock(server).write(own, "u8", &[device as u8; 4]);
    let written = written.and_then(|()| lock(server).write(other, "u8", &[255; 4]));
    sums_are_enqueued.wait();
    written?;
    if device == half[0] {
        lock(server).send(own, half, half[1])
    } else {
        lock(server).recv(other, half, half[0])
    }
}

fn lock<S>(server: &Mutex<S>) -> std::sync::MutexGuard<'_, S> {
    server.lock().expect("no client panics")
}

fn on_threads<R: Send>(body: impl Fn(usize) -> Result<R> + Sync) -> Result<Vec<R>> {
    let body = &body;
    thread::scope(|scope| {
        let threads = DEVICES.map(|device| scope.spawn(move || body(device)));
        threads.into_iter().map(|thread| thread.join().expect("no server panics")).collect()
    })
}

fn encode(element: &str, values: &[f32]) -> Vec<u8> {
    let encode_one = |value: &f32| match element {
        "i64" => (*value as i64).to_ne_bytes().to_vec(),
        "bf16" => ((value.to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(encode_one).collect()
}

fn decode(element: &str, bytes: &[u8]) -> Vec<f32> {
    match element {
        "i64" => bytes.as_chunks().0.iter().map(|bytes| i64::from_ne_bytes(*bytes) as f32).collect(),
        "bf16" => {
            let bits = bytes.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes));
            bits.map(|bits| f32::from_bits(u32::from(bits) << 16)).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect(),
    }
}
