//! Every method of the safe layer, as a caller would use it.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::CString;
use std::ptr;
use std::time::Duration;

use libnccl::{
    AbortHandle, CollectiveConfig, Communicator, Config, DeviceSlice, DeviceSliceMut, Element, Encryption,
    LoadError, MemoryStatistic, Nccl, NcclBuffer, ReduceOp, Result, ShrinkMode, Signal, StreamRef, UniqueId,
    WaitSignal, WindowFlags,
};
use libnccl_test_support::fake_nccl::FakeNccl;

/// The library and options that a method works with.
pub(crate) struct Fixture {
    pub(crate) library: FakeNccl,
    pub(crate) nccl: Nccl,
    pub(crate) config: Config,
    pub(crate) options: CollectiveConfig,
    /// The number of calls before those that the method is about.
    before: RefCell<usize>,
    publish: Box<dyn Fn(AbortHandle)>,
}

type Act = dyn Fn(&Fixture) -> Result<()> + Send + Sync;

/// A method under test. It ends its communicators by methods that return errors, not by drop.
pub(crate) struct Method {
    pub(crate) name: String,
    /// Set if the method is about creating or ending a communicator.
    pub(crate) is_about_lifecycle: bool,
    pub(crate) act: Box<Act>,
}

impl Fixture {
    pub(crate) fn new(
        library: FakeNccl,
        timeout: Option<Duration>,
        publish: Box<dyn Fn(AbortHandle)>,
    ) -> Result<Self, LoadError> {
        let config = timeout.map_or_else(Config::new, |timeout| Config::new().timeout(timeout));
        let options = CollectiveConfig::new().min_ctas(2).alg_selection("ring");
        let nccl = library.load()?;
        // Asked once, when it is first needed: here, as the calls of loading are not a method's.
        let _ = nccl.memory_space();
        Ok(Self { library, nccl, config, options, before: RefCell::default(), publish })
    }

    fn comm(&self) -> Result<Communicator> {
        let comm = self.nccl.init_rank_with(4, 2, &id(), &self.config)?;
        self.publish(&comm);
        *self.before.borrow_mut() = self.library.calls().len();
        Ok(comm)
    }

    /// Destroys a communicator, whose wait the other thread can end.
    fn destroy(&self, comm: Communicator) -> Result<()> {
        self.publish(&comm);
        comm.destroy()
    }

    fn publish(&self, comm: &Communicator) {
        (self.publish)(comm.abort_handle());
    }

    pub(crate) fn before(&self) -> usize {
        *self.before.borrow()
    }
}

fn id() -> UniqueId {
    UniqueId::from_bytes([1; UniqueId::BYTES])
}

fn send<T: Element>(length: usize) -> DeviceSlice<'static, T> {
    // SAFETY: never read, as the library does nothing.
    unsafe { DeviceSlice::from_raw_parts(ptr::without_provenance(0x1_0000), length) }
}

fn recv<T: Element>(length: usize) -> DeviceSliceMut<'static, T> {
    // SAFETY: as above.
    unsafe { DeviceSliceMut::from_raw_parts(ptr::without_provenance_mut(0x2_0000), length) }
}

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

fn method(name: impl Into<String>, act: impl Fn(&Fixture) -> Result<()> + Send + Sync + 'static) -> Method {
    Method { name: name.into(), is_about_lifecycle: true, act: Box::new(act) }
}

/// Creates a method of a communicator, which is created before and destroyed afterwards.
fn of_comm(
    name: impl Into<String>,
    act: impl Fn(&Fixture, &Communicator) -> Result<()> + Send + Sync + 'static,
) -> Method {
    let act = Box::new(move |fixture: &Fixture| {
        let comm = fixture.comm()?;
        act(fixture, &comm)?;
        comm.destroy()
    });
    Method { name: name.into(), is_about_lifecycle: false, act }
}

macro_rules! operations {
    ($($method:ident($($argument:expr),*);)*) => {
        fn operations() -> Vec<Method> {
            let mut methods = Vec::new();
            $({
                let name = stringify!($method);
                methods.push(of_comm(name, |_, comm| comm.$method($($argument,)* STREAM)));
                methods.push(of_comm(format!("grouped {name}"), |f, comm| {
                    f.nccl.group(|g| g.$method(comm, $($argument,)* STREAM))
                }));
                if !["send", "recv"].contains(&name) {
                    methods.push(of_comm(format!("configured {name}"), |f, comm| {
                        comm.operations().with(&f.options).$method($($argument,)* STREAM)
                    }));
                    methods.push(of_comm(format!("grouped configured {name}"), |f, comm| {
                        f.nccl.group(|g| g.on(comm).with(&f.options).$method($($argument,)* STREAM))
                    }));
                }
            })*
            methods
        }
    };
}

operations! {
    all_reduce(send::<i8>(3), recv::<i8>(3), ReduceOp::Sum);
    all_reduce_in_place(recv::<u8>(3), ReduceOp::Prod);
    broadcast(send::<i32>(3), recv::<i32>(3), 2);
    broadcast_in_place(recv::<u32>(3), 1);
    reduce(send::<i64>(3), recv::<i64>(3), ReduceOp::Max, 2);
    reduce_in_place(recv::<u64>(3), ReduceOp::Min, 0);
    all_gather(send::<f32>(3), recv::<f32>(12));
    all_gather_in_place(recv::<f64>(8));
    reduce_scatter(send::<f32>(12), recv::<f32>(3), ReduceOp::Avg);
    reduce_scatter_in_place(recv::<f32>(8), ReduceOp::Sum);
    all_to_all(send::<f32>(8), recv::<f32>(8));
    gather(send::<f32>(3), recv::<f32>(12), 2);
    gather_in_place(recv::<f32>(12), 2);
    scatter(send::<f32>(12), recv::<f32>(3), 2);
    scatter_in_place(recv::<f32>(12), 2);
    send(send::<f32>(3), 1);
    recv(recv::<f32>(3), 3);
}

/// Returns the operations that consist of several.
fn sequences() -> Vec<Method> {
    const COUNTS: [usize; 4] = [4, 0, 2, 1];
    vec![
        of_comm("sendrecv", |_, comm| comm.sendrecv(send::<f32>(3), recv::<f32>(2), 1, 3, STREAM)),
        of_comm("grouped sendrecv", |f, comm| {
            f.nccl.group(|g| g.sendrecv(comm, send::<f32>(3), recv::<f32>(2), 1, 3, STREAM))
        }),
        of_comm("all_gather_v", |_, comm| comm.all_gather_v(send::<i8>(2), recv::<i8>(7), &COUNTS, STREAM)),
        of_comm("configured all_gather_v", |f, comm| {
            comm.operations().with(&f.options).all_gather_v(send::<i8>(2), recv::<i8>(7), &COUNTS, STREAM)
        }),
        of_comm("grouped configured reduce_scatter_v", |f, comm| {
            f.nccl.group(|g| {
                let operations = g.on(comm).with(&f.options);
                operations.reduce_scatter_v(send::<i8>(7), recv::<i8>(2), &COUNTS, ReduceOp::Sum, STREAM)
            })
        }),
        of_comm("all_to_all_v", |_, comm| {
            comm.all_to_all_v(send::<i8>(7), recv::<i8>(7), &COUNTS, &COUNTS, STREAM)
        }),
        of_comm("gather_v", |_, comm| comm.gather_v(send::<i8>(2), recv::<i8>(7), &COUNTS, 2, STREAM)),
        of_comm("scatter_v", |_, comm| comm.scatter_v(send::<i8>(7), recv::<i8>(2), &COUNTS, 2, STREAM)),
        of_comm("configured all_gather_v_in_place", |f, comm| {
            comm.operations().with(&f.options).all_gather_v_in_place(recv::<i8>(7), &COUNTS, STREAM)
        }),
        of_comm("grouped configured reduce_scatter_v_in_place", |f, comm| {
            f.nccl.group(|g| {
                let operations = g.on(comm).with(&f.options);
                operations.reduce_scatter_v_in_place(recv::<i8>(7), &COUNTS, ReduceOp::Sum, STREAM)
            })
        }),
        of_comm("gather_v_in_place", |_, comm| comm.gather_v_in_place(recv::<i8>(7), &COUNTS, 2, STREAM)),
        of_comm("scatter_v_in_place", |_, comm| comm.scatter_v_in_place(recv::<i8>(7), &COUNTS, 2, STREAM)),
    ]
}

macro_rules! reductions {
    ($($method:ident($($argument:expr),*);)*) => {
        fn reductions() -> Vec<Method> {
            let mut methods = Vec::new();
            $({
                let name = stringify!($method);
                methods.push(of_comm(format!("scaled {name}"), |_, comm| {
                    comm.pre_mul_sum(0.5_f64)?.$method($($argument,)* STREAM)
                }));
                methods.push(of_comm(format!("grouped scaled {name}"), |f, comm| {
                    let op = comm.pre_mul_sum_device(send::<f64>(1))?;
                    f.nccl.group(|g| op.on(g).with(&f.options).$method($($argument,)* STREAM))
                }));
            })*
            methods
        }
    };
}

reductions! {
    all_reduce(send(3), recv(3));
    all_reduce_in_place(recv(3));
    reduce(send(3), recv(3), 1);
    reduce_in_place(recv(3), 1);
    reduce_scatter(send(12), recv(3));
    reduce_scatter_in_place(recv(8));
}

/// Returns the methods that create communicators.
fn makers() -> Vec<Method> {
    vec![
        method("unique_id", |f| f.nccl.unique_id().map(drop)),
        method("init_rank", |f| f.nccl.init_rank(4, 2, &id())?.destroy()),
        method("init_rank_with", |f| f.nccl.init_rank_with(4, 2, &id(), &f.config)?.destroy()),
        method("init_rank_scalable", |f| {
            f.nccl.init_rank_scalable(4, 2, &[id(), id()], &f.config)?.destroy()
        }),
        method("init_all", |f| Communicator::destroy_all(f.nccl.init_all(&[0, 2, 1])?)),
        method("grow_rank", |f| f.nccl.grow_rank(9, 8, &id(), &f.config)?.destroy()),
        method("pending", |f| f.nccl.group(|g| g.init_rank(4, 2, &id(), &f.config))?.finish()?.destroy()),
        method("two pending", |f| {
            let [first, second] = f.nccl.group(|g| {
                Ok([g.init_rank(4, 2, &id(), &f.config)?, g.init_rank(4, 3, &id(), &f.config)?])
            })?;
            let ended = first.finish()?.destroy();
            ended.and(second.finish()?.destroy())
        }),
        method("into_raw and from_raw", |f| {
            let raw = f.nccl.init_rank(4, 2, &id())?.into_raw();
            // SAFETY: given up just before.
            unsafe { Communicator::from_raw(&f.nccl, raw) }?.destroy()
        }),
        of_comm("split", |f, comm| comm.split(Some(7), -3)?.map_or(Ok(()), |child| f.destroy(child))),
        of_comm("split_with", |f, comm| {
            let config = Config::new().split_share(true).name("child");
            comm.split_with(Some(7), 0, &config)?.map_or(Ok(()), |child| f.destroy(child))
        }),
        of_comm("split without a color", |f, comm| {
            comm.split(None, 3)?.map_or(Ok(()), |child| f.destroy(child))
        }),
        of_comm("shrink", |f, comm| f.destroy(comm.shrink(&[3, 1], ShrinkMode::Default, &Config::new())?)),
        of_comm("shrink after a failure", |f, comm| {
            f.destroy(comm.shrink(&[0], ShrinkMode::Abort, &Config::new().shrink_share(true))?)
        }),
        of_comm("grow", |f, comm| f.destroy(comm.grow(9, Some(&id()), &Config::new())?)),
        of_comm("grow without the id", |f, comm| f.destroy(comm.grow(9, None, &Config::new())?)),
    ]
}

/// Returns the queries, state changes and endings of a communicator.
fn lifecycle() -> Vec<Method> {
    vec![
        of_comm("async_error", |_, comm| comm.async_error().map(drop)),
        of_comm("memory", |_, comm| comm.memory(MemoryStatistic::Total).map(drop)),
        of_comm("suspend", |_, comm| comm.suspend()),
        of_comm("resume", |_, comm| comm.resume()),
        of_comm("revoke", |_, comm| comm.revoke()),
        of_comm("unique_id of a communicator", |_, comm| comm.unique_id().map(drop)),
        of_comm("barrier", |_, comm| comm.barrier(recv::<u8>(1), STREAM)),
        of_comm("grouped barrier", |f, comm| f.nccl.group(|g| g.barrier(comm, recv::<u8>(1), STREAM))),
        method("destroy", |f| f.comm()?.destroy()),
        method("abort", |f| f.comm()?.abort()),
        method("abort by a handle", |f| f.comm()?.abort_handle().abort()),
        method("finalize and destroy", |f| f.comm()?.finalize()?.destroy()),
        method("finalize and abort", |f| f.comm()?.finalize()?.abort()),
        method("destroy_all", |f| Communicator::destroy_all([f.comm()?, f.comm()?])),
    ]
}

/// Returns the methods for memory, registrations, windows and one-sided operations.
fn memory() -> Vec<Method> {
    /// Registers a window of one page, passes it to `act`, and deregisters it.
    fn with_window(
        f: &Fixture,
        comm: &Communicator,
        act: impl FnOnce(&libnccl::Window<'_, f32>) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = f.nccl.alloc::<f32>(1024)?;
        // SAFETY: no other rank exists.
        let window = unsafe { comm.register_window(&mut buffer, WindowFlags::COLL_SYMMETRIC) }?;
        act(&window)?;
        end_window(buffer, window)
    }
    fn end_window(mut buffer: NcclBuffer<f32>, window: libnccl::Window<'_, f32>) -> Result<()> {
        // SAFETY: the library does no work.
        unsafe { buffer.assume_idle() };
        window.deregister()?;
        buffer.free()
    }
    let signal = Signal::default();
    let wait = [WaitSignal { count: 1, peer: 1, signal }];
    vec![
        method("alloc", |f| f.nccl.alloc::<f64>(8)?.free()),
        of_comm("register", |f, comm| {
            let buffer = f.nccl.alloc::<f32>(8)?;
            comm.register(&buffer)?.deregister()?;
            buffer.free()
        }),
        of_comm("register_raw", |_, comm| {
            // SAFETY: the library does nothing with the memory.
            unsafe { comm.register_raw(ptr::without_provenance_mut(0x1000), 64) }?.deregister()
        }),
        of_comm("owned registration", |f, comm| {
            let buffer = f.nccl.alloc::<f32>(8)?;
            comm.register(&buffer)?.into_owned()?.deregister()?;
            buffer.free()
        }),
        of_comm("owned window", |f, comm| {
            let mut buffer = f.nccl.alloc::<f32>(1024)?;
            // SAFETY: no other rank exists.
            let window = unsafe { comm.register_window(&mut buffer, WindowFlags::DEFAULT) }?.into_owned()?;
            // SAFETY: the library does no work.
            unsafe { buffer.assume_idle() };
            window.deregister()?;
            buffer.free()
        }),
        of_comm("register_window", |f, comm| with_window(f, comm, |_| Ok(()))),
        of_comm("grouped register_window", |f, comm| {
            let mut buffer = f.nccl.alloc::<f32>(1024)?;
            let window = f.nccl.group(|g| {
                // SAFETY: no other rank exists.
                unsafe { g.register_window(comm, &mut buffer, WindowFlags::DEFAULT) }
            })?;
            end_window(buffer, window)
        }),
        of_comm("user_ptr", |f, comm| with_window(f, comm, |window| window.user_ptr().map(drop))),
        of_comm("put_signal", move |f, comm| {
            with_window(f, comm, |window| match window.is_active() {
                true => comm.put_signal(send::<f32>(4), 1, window.at(8), signal, STREAM),
                false => Ok(()),
            })
        }),
        of_comm("signal", move |_, comm| comm.signal(1, signal, STREAM)),
        of_comm("grouped signal", move |f, comm| f.nccl.group(|g| g.signal(comm, 1, signal, STREAM))),
        of_comm("wait_signal", move |_, comm| comm.wait_signal(&wait, STREAM)),
        of_comm("grouped wait_signal", move |f, comm| f.nccl.group(|g| g.wait_signal(comm, &wait, STREAM))),
    ]
}

fn others() -> Vec<Method> {
    let mut methods = vec![
        method("last_error", |f| {
            drop(f.nccl.last_error());
            Ok(())
        }),
        method("empty group", |f| f.nccl.group(|_| Ok(()))),
        method("group in a group", |f| f.nccl.group(|g| g.group(|_| Ok(())))),
        of_comm("operations in a group in a group", |f, comm| {
            f.nccl.group(|g| {
                g.group(|g| g.send(comm, send::<f32>(1), 0, STREAM))?;
                g.recv(comm, recv::<f32>(1), 0, STREAM)
            })
        }),
        // Of a blocking communicator: NCCL does not simulate others.
        method("simulate", |f| {
            let comm = f.nccl.init_rank(4, 2, &id())?;
            f.publish(&comm);
            *f.before.borrow_mut() = f.library.calls().len();
            f.nccl.simulate(|g| g.all_reduce_in_place(&comm, recv::<f32>(3), ReduceOp::Sum, STREAM))?;
            comm.destroy()
        }),
        method("set_encryption", |f| f.nccl.set_encryption(Encryption::None)),
        method("keys", |f| f.nccl.parameters()?.keys().map(drop)),
        method("dump", |f| f.nccl.parameters()?.dump()),
    ];
    macro_rules! parameters {
        ($($type:ty),*) => {$(
            methods.push(method(concat!("parameter of ", stringify!($type)), |f| {
                f.nccl.parameters()?.get::<$type>("KEY").map(drop)
            }));
        )*};
    }
    parameters!(i8, i16, i32, i64, u8, u16, u32, u64, String, CString, Vec<u8>);
    methods
}

pub(crate) fn all() -> Vec<Method> {
    [operations(), sequences(), reductions(), makers(), lifecycle(), memory(), others()]
        .into_iter()
        .flatten()
        .collect()
}
