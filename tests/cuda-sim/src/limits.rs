//! Queries and settings of a context.

use crate::abi::{Handle, Out, api};
use crate::error::{Answer, Error};
use crate::memory::residency;
use crate::objects::{Context, objects};
use crate::stream::PRIORITIES;

api! {
    fn cuCtxGetLimit(value: Out<usize>, limit: u32) = limit;
    fn cuCtxSetLimit(limit: u32, value: usize) = set_limit;
    fn cuCtxGetCacheConfig(config: Out<u32>) = cache;
    fn cuCtxSetCacheConfig(config: u32) = set_cache;
    fn cuCtxGetSharedMemConfig(config: Out<u32>) = shared;
    fn cuCtxSetSharedMemConfig(config: u32) = set_shared;
    fn cuCtxGetFlags(flags: Out<u32>) = flags;
    fn cuCtxSetFlags(flags: u32) = set_flags;
    fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) = api_version;
    fn cuCtxGetId(context: Handle, id: Out<u64>) = id;
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) = priorities;
    fn cuCtxResetPersistingL2Cache() = reset_cache;
}

/// Initial value of each limit (`CUlimit`).
const LIMITS: [usize; 8] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0];
const FLAGS: u32 = 0xff;
/// `CU_LIMIT_MALLOC_HEAP_SIZE`.
const MALLOC_HEAP: u32 = 2;

fn with<T>(work: impl FnOnce(&mut Context) -> T) -> Result<T, Error> {
    let mut objects = objects()?;
    let (current, _) = objects.current()?;
    Ok(work(objects.context(current)?))
}

fn limit(value: Out<usize>, limit: u32) -> Answer {
    let set = with(|context| context.limits.get(&limit).copied())?;
    let first = LIMITS.get(limit as usize).copied().ok_or(Error::UNSUPPORTED_LIMIT)?;
    value.put(set.unwrap_or(first))
}

fn set_limit(limit: u32, value: usize) -> Answer {
    if limit == MALLOC_HEAP {
        return set_heap(value);
    }
    with(|context| {
        if limit as usize >= LIMITS.len() {
            return Err(Error::UNSUPPORTED_LIMIT);
        }
        context.limits.insert(limit, value);
        Ok(())
    })?
}

/// The heap of device code is on the card: what is beyond the first size is taken when it is asked for.
fn set_heap(value: usize) -> Answer {
    let mut objects = objects()?;
    let (current, device) = objects.current()?;
    let beyond = |value: usize| value.saturating_sub(LIMITS[MALLOC_HEAP as usize]) as u64;
    let before = objects.context(current)?.limits.get(&MALLOC_HEAP).map_or(0, |before| beyond(*before));
    match beyond(value).checked_sub(before) {
        Some(more) => {
            residency::take(&mut objects.allocations, device, more)?;
            objects.context(current)?.bytes += more;
        }
        None => {
            objects.context(current)?.bytes -= before - beyond(value);
            residency::release(device, before - beyond(value));
        }
    }
    objects.context(current)?.limits.insert(MALLOC_HEAP, value);
    Ok(())
}

fn cache(config: Out<u32>) -> Answer {
    config.put(with(|context| context.cache)?)
}

fn set_cache(config: u32) -> Answer {
    if config > 3 {
        return Err(Error::INVALID_VALUE);
    }
    with(|context| context.cache = config)
}

fn shared(config: Out<u32>) -> Answer {
    config.put(with(|context| context.shared)?)
}

fn set_shared(config: u32) -> Answer {
    if config > 2 {
        return Err(Error::INVALID_VALUE);
    }
    with(|context| context.shared = config)
}

fn flags(flags: Out<u32>) -> Answer {
    flags.put(with(|context| context.flags)?)
}

fn set_flags(flags: u32) -> Answer {
    if flags & !FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    with(|context| context.flags = flags)
}

fn api_version(context: Handle, version: Out<u32>) -> Answer {
    let mut objects = objects()?;
    let context = objects.context_or_current(context)?;
    version.put(objects.context(context)?.api_version)
}

fn id(context: Handle, id: Out<u64>) -> Answer {
    id.put(objects()?.context_or_current(context)?)
}

fn priorities(least: Out<i32>, greatest: Out<i32>) -> Answer {
    with(|_| ())?;
    least.put_if(PRIORITIES.0);
    greatest.put_if(PRIORITIES.1);
    Ok(())
}

fn reset_cache() -> Answer {
    with(|_| ())
}
