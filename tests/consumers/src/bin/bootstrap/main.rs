//! Workers that share blocks of a cache, in the shape of dynamo's: the leader sends the id over a socket, as bytes; the
//! communicator has options; blocks at addresses are broadcast as bytes, with a communicator of the program's own and
//! with one that another library owns.
//!
//! The argument is `before` or `after`. Prints the blocks of each worker.

#![deny(unsafe_code)]

mod after;
mod before;
mod blocks;
mod owner;
mod result;
mod worker;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;

use cudarc::driver::{CudaContext, CudaStream};

use blocks::Blocks;
use owner::Owned;
use result::Result;
use worker::{Id, Worker};

const WORKERS: usize = 3;

fn main() -> Result {
    match std::env::args().nth(1).as_deref() {
        Some("before") => run::<before::Worker>(),
        Some("after") => run::<after::Worker>(),
        other => Err(format!("the form is {other:?}; expected before or after").into()),
    }
}

fn run<W: Worker>() -> Result {
    // CUDA before NCCL.
    CudaContext::new(0)?;
    let (listener, other_library) = (TcpListener::bind("127.0.0.1:0")?, owner::id()?);
    let address = listener.local_addr()?;
    let (mut listener, all_done) = (Some(listener), &Barrier::new(WORKERS));
    let texts = thread::scope(|scope| {
        let worker = |rank| {
            let listener = listener.take();
            scope.spawn(move || {
                let id = exchange_id::<W>(listener, address)?;
                let owned = Owned::join(rank, WORKERS, other_library)?;
                let text = run_worker::<W>(rank, id, &owned);
                all_done.wait();
                text
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(worker).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect::<Result<String>>()
    })?;
    print!("{texts}");
    Ok(())
}

/// Returns the id that the leader, which has the listener, creates and sends.
fn exchange_id<W: Worker>(listener: Option<TcpListener>, leader: SocketAddr) -> Result<Id> {
    let Some(listener) = listener else {
        let mut id = [0; 128];
        TcpStream::connect(leader)?.read_exact(&mut id)?;
        return Ok(id);
    };
    let id = W::id()?;
    for _ in 1..WORKERS {
        listener.accept()?.0.write_all(&id)?;
    }
    Ok(id)
}

/// Broadcasts two blocks of the leader, and then the third of the last worker by the communicator of another library.
fn run_worker<W: Worker>(rank: usize, id: Id, owned: &Owned) -> Result<String> {
    let context = CudaContext::new(rank)?;
    let stream: Arc<CudaStream> = context.new_stream()?;
    let worker = W::join(&context, rank, WORKERS, id)?;
    let mut blocks = Blocks::new(&stream, 3, 4, |byte| (50 * rank + byte) as u8)?;
    worker.broadcast(&mut blocks.blocks()[..2], 0, &stream)?;
    let known = W::broadcast_with(owned, &mut blocks.blocks()[2..], WORKERS - 1, &stream)?;
    let text = format!("worker {rank}, of another library {known:?}: {:?}\n", blocks.read(&stream)?);
    worker.end()?;
    Ok(text)
}
