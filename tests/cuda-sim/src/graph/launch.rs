//! Graphs that can be launched, and launches.

use super::table::{Exec, Fill, Work, addresses, table};
use crate::abi::{Handle, Out, api};
use crate::backing;
use crate::error::{Answer, Error};
use crate::host_functions::{self, Call};
use crate::objects::{Objects, objects};

api! {
    fn cuGraphInstantiate(exec: Out<Handle>, graph: Handle, node: Out<Handle>, log: u64, bytes: usize)
        = instantiate_with_log;
    fn cuGraphInstantiate_v2(exec: Out<Handle>, graph: Handle, node: Out<Handle>, log: u64, bytes: usize)
        = instantiate_with_log;
    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: u64) = instantiate;
    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(
        exec: Out<Handle>, graph: Handle, how: Out<How>,
    ) = instantiate_as;
    fn cuGraphExecGetFlags(exec: Handle, flags: Out<u64>) = flags_of;
    fn cuGraphExecDestroy(exec: Handle) = destroy;
    fn cuGraphUpload | cuGraphUpload_ptsz(exec: Handle, stream: Handle) = upload;
    fn cuGraphLaunch | cuGraphLaunch_ptsz(exec: Handle, stream: Handle) = launch;
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct How {
    flags: u64,
    upload: Handle,
    failed: Handle,
    result: u32,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`, and all of the flags.
const AUTO_FREE: u64 = 1;
const FLAGS: u64 = 0xf;

fn instantiate(exec: Out<Handle>, graph: Handle, flags: u64) -> Answer {
    exec.check()?;
    let mut objects = objects()?;
    let mut table = table();
    if flags & !FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let work = table.in_order(graph)?;
    // A graph with memory nodes has one executable at a time.
    if work.iter().any(Work::is_memory) && table.execs.values().any(|exec| exec.graph == graph) {
        return Err(Error::NOT_SUPPORTED);
    }
    let handle = objects.handle();
    table.execs.insert(handle, Exec { work, flags, graph });
    exec.put(handle)
}

fn instantiate_with_log(exec: Out<Handle>, graph: Handle, node: Out<Handle>, _log: u64, _bytes: usize) -> Answer {
    node.put_if(0);
    instantiate(exec, graph, 0)
}

fn instantiate_as(exec: Out<Handle>, graph: Handle, how: Out<How>) -> Answer {
    let wanted = how.get()?;
    instantiate(exec, graph, wanted.flags)?;
    how.put(How { failed: 0, result: 0, ..wanted })
}

fn flags_of(exec: Handle, flags: Out<u64>) -> Answer {
    let _objects = objects()?;
    flags.put(table().execs.get(&exec).ok_or(Error::INVALID_VALUE)?.flags)
}

fn destroy(exec: Handle) -> Answer {
    let mut objects = objects()?;
    let mut table = table();
    let gone = table.execs.remove(&exec).ok_or(Error::INVALID_VALUE)?;
    table.forget(&mut objects, &addresses(gone.work.iter()));
    Ok(())
}

/// Uploads nothing: there is no preparation before a launch.
fn upload(exec: Handle, stream: Handle) -> Answer {
    let mut objects = objects()?;
    objects.stream(stream)?;
    table().execs.get(&exec).map(|_| ()).ok_or(Error::INVALID_VALUE)
}

fn launch(exec: Handle, stream: Handle) -> Answer {
    let mut objects = objects()?;
    let stream = objects.stream(stream)?;
    if objects.records(stream)? {
        return Ok(());
    }
    let (work, flags) = {
        let table = table();
        let Exec { work, flags, .. } = table.execs.get(&exec).ok_or(Error::INVALID_VALUE)?;
        (work.clone(), *flags)
    };
    if flags & AUTO_FREE != 0 {
        for address in addresses(work.iter()) {
            super::free(&mut objects, address);
        }
    }
    let device = objects.device_of_stream(stream)?;
    let mut end = objects.begin(stream)?;
    for work in work {
        end = objects.step(device, stream, work, end)?;
        objects.busy_until(stream, end);
    }
    Ok(())
}

impl Objects {
    /// Does what a node says; answers when it is done.
    fn step(&mut self, device: usize, stream: Handle, work: Work, start: u64) -> Result<u64, Error> {
        match work {
            Work::Nothing(_) | Work::Child(_) => Ok(start),
            Work::Copy(copy) => copy.run(self, device, start),
            Work::Set(fill) => self.fill(device, &fill, start),
            Work::Host { function, data } => {
                let stream_of = self.streams.get_mut(&stream).ok_or(Error::INVALID_HANDLE)?;
                host_functions::put(stream, &mut stream_of.functions, start, Call::Function { function, data });
                Ok(start)
            }
            Work::Allocate { device, address, bytes } => {
                let mut table = table();
                let memory = table.memory.entry(device).or_default();
                Ok(memory.allocate(self, device, (address, bytes))?.max(start))
            }
            Work::Free { address } if super::free(self, address) => Ok(start),
            Work::Free { .. } => Err(Error::INVALID_VALUE),
        }
    }

    fn fill(&mut self, device: usize, fill: &Fill, start: u64) -> Result<u64, Error> {
        let value = fill.value.to_ne_bytes();
        let element = value.get(..fill.element as usize).filter(|element| matches!(element.len(), 1 | 2 | 4));
        let element = element.ok_or(Error::INVALID_VALUE)?;
        let row = (fill.width as u64).checked_mul(element.len() as u64).ok_or(Error::INVALID_VALUE)?;
        let mut done = start;
        for number in 0..fill.height as u64 {
            let skip = number.checked_mul(fill.pitch as u64).ok_or(Error::INVALID_VALUE)?;
            let at = fill.to.checked_add(skip).ok_or(Error::INVALID_VALUE)?;
            done = self.device_uses(device, (at, row), true, done)?;
            backing::fill(at, element, fill.width as u64);
        }
        Ok(done)
    }
}
