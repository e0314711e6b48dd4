//! A program that a worker starts, and that ends when the worker ends.
//!
//! The program's standard input is a pipe that only the worker holds open. However the worker ends, the program then reads the end of the
//! input, and must end, too. The program's standard error is the worker's: the server's log.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long [`Program::stop`] waits for the program's end before it kills the program.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Program(Child);

impl Program {
    /// Starts a program with an empty environment and none of this process's files and sockets.
    pub fn start(binary: &Path, arguments: &[String]) -> io::Result<Self> {
        let mut command = Command::new(binary);
        command.args(arguments).env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
        #[cfg(target_os = "linux")]
        // SAFETY: between fork and exec only this system call is made, which is safe there. It marks files, and closes none: the
        // standard library's own pipe reports an error of exec.
        unsafe {
            command.pre_exec(|| {
                libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
                Ok(())
            });
        }
        command.spawn().map(Self)
    }

    /// The exit status; None while the program runs.
    pub fn ended(&mut self) -> io::Result<Option<std::process::ExitStatus>> {
        self.0.try_wait()
    }

    /// Closes the program's input, and waits for its end; kills it after [`PATIENCE`].
    pub fn stop(mut self) {
        drop(self.0.stdin.take());
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && matches!(self.0.try_wait(), Ok(None)) {
            super::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
