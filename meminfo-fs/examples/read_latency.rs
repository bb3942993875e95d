//! Latency of opening a file, reading it to its end and closing it. For `bench/meminfo.sh`.
//!
//! `read_latency PATH COUNT` prints one line: p50 and p99 in microseconds, and reads per second. Choose the CPU with
//! taskset(1).

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::Read as _;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [path, count] = &arguments[..] else {
        return Err("usage: read_latency PATH COUNT".into());
    };
    let count: usize = count.parse()?;
    if count == 0 {
        return Err("COUNT must be at least 1".into());
    }
    let mut buffer = vec![0; 64 * 1024];
    for _ in 0..count / 10 {
        read_once(path, &mut buffer)?;
    }
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        times.push(read_once(path, &mut buffer)?);
    }
    let total: Duration = times.iter().sum();
    times.sort_unstable();
    let micros = |quantile: f64| times[(quantile * (count - 1) as f64) as usize].as_secs_f64() * 1e6;
    println!("{:.1} {:.1} {:.0}", micros(0.5), micros(0.99), count as f64 / total.as_secs_f64());
    Ok(())
}

fn read_once(path: &str, buffer: &mut [u8]) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let mut file = File::open(path)?;
    let mut length = 0;
    loop {
        match file.read(buffer)? {
            0 => break,
            read => length += read,
        }
    }
    drop(file);
    let took = started.elapsed();
    if length == 0 { Err(format!("{path} is empty").into()) } else { Ok(took) }
}
