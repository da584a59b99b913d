// Calls an entry point of a package whose one input is a matrix of float32, from Rust. Declares the
// part of gyrator.h that it uses, and prints the first result.
//
//   gyrator aot library --out prefix
//   rustc --edition 2021 call.rs -L prefix/lib -l gyrator_runtime -C link-arg=-Wl,-rpath,$PWD/prefix/lib
//   ./call model.gya 3 16
use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::{null, null_mut};

type Status = i32;
const FLOAT32: i32 = 2;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    dtype: i32,
    ndim: i32,
    sizes: *const i64,
    strides: *const i64,
    device_type: i32,
    device_index: i32,
    owner: *mut c_void,
}

extern "C" {
    fn gyr_last_error() -> *const c_char;
    fn gyr_status_name(status: Status) -> *const c_char;
    fn gyr_package_open(
        path: *const c_char,
        options: *const c_void,
        package: *mut *mut c_void,
    ) -> Status;
    fn gyr_package_close(package: *mut c_void);
    fn gyr_instance_create(
        package: *mut c_void,
        allocator: *const c_void,
        instance: *mut *mut c_void,
    ) -> Status;
    fn gyr_instance_close(instance: *mut c_void);
    fn gyr_run(
        instance: *mut c_void,
        entry: usize,
        inputs: *const Tensor,
        n_inputs: usize,
        outputs: *mut Tensor,
        n_outputs: usize,
    ) -> Status;
    fn gyr_tensor_release(tensor: *mut Tensor);
}

fn check(status: Status) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    let (name, text) =
        unsafe { (CStr::from_ptr(gyr_status_name(status)), CStr::from_ptr(gyr_last_error())) };
    Err(format!("{}: {}", name.to_string_lossy(), text.to_string_lossy()))
}

impl Tensor {
    /// A tensor whose memory the library allocates.
    fn empty() -> Tensor {
        Tensor {
            data: null_mut(),
            dtype: 0,
            ndim: 0,
            sizes: null(),
            strides: null(),
            device_type: 0,
            device_index: 0,
            owner: null_mut(),
        }
    }
}

/// What a call computed; its memory is the library's.
struct Output(Tensor);

unsafe impl Send for Output {}

impl Output {
    fn sizes(&self) -> Vec<i64> {
        let rank = self.0.ndim as usize;
        if rank == 0 {
            return Vec::new();
        }
        unsafe { std::slice::from_raw_parts(self.0.sizes, rank).to_vec() }
    }

    /// The elements of a contiguous tensor of float32.
    fn floats(&self) -> Result<&[f32], String> {
        if self.0.dtype != FLOAT32 {
            return Err("the result is not float32".to_string());
        }
        let count = self.sizes().iter().product::<i64>() as usize;
        if count == 0 {
            return Ok(&[]);
        }
        Ok(unsafe { std::slice::from_raw_parts(self.0.data as *const f32, count) })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        unsafe { gyr_tensor_release(&mut self.0) }
    }
}

/// An instance of a package. The library lets any number of threads call it.
struct Model(*mut c_void);

unsafe impl Send for Model {}
unsafe impl Sync for Model {}

impl Model {
    fn load(path: &str) -> Result<Model, String> {
        let path = CString::new(path).map_err(|error| error.to_string())?;
        let (mut package, mut instance) = (null_mut(), null_mut());
        unsafe {
            check(gyr_package_open(path.as_ptr(), null(), &mut package))?;
            let created = check(gyr_instance_create(package, null(), &mut instance));
            gyr_package_close(package); // the instance keeps what it needs
            created?;
        }
        Ok(Model(instance))
    }

    /// Runs the first entry point on a contiguous matrix.
    fn run(&self, data: &[f32], sizes: [i64; 2]) -> Result<Output, String> {
        assert_eq!(data.len() as i64, sizes[0] * sizes[1]);
        let input = Tensor {
            data: data.as_ptr() as *mut c_void,
            dtype: FLOAT32,
            ndim: 2,
            sizes: sizes.as_ptr(),
            ..Tensor::empty()
        };
        let mut output = Output(Tensor::empty());
        check(unsafe { gyr_run(self.0, 0, &input, 1, &mut output.0, 1) })?;
        Ok(output)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { gyr_instance_close(self.0) }
    }
}

fn run(path: &str, rows: &str, columns: &str) -> Result<(), String> {
    let number = |text: &str| text.parse::<u32>().map_err(|error| format!("{text}: {error}"));
    let sizes = [i64::from(number(rows)?), i64::from(number(columns)?)];
    let ones = vec![1.0; (sizes[0] * sizes[1]) as usize];
    let model = Model::load(path)?;
    let results: Result<Vec<Output>, String> = std::thread::scope(|scope| {
        let calls = [(); 4].map(|()| scope.spawn(|| model.run(&ones, sizes)));
        calls.into_iter().map(|call| call.join().expect("a call panicked")).collect()
    });
    let results = results?;
    for result in &results {
        if result.sizes() != results[0].sizes() || result.floats()? != results[0].floats()? {
            return Err("calls of four threads differ".to_string());
        }
    }
    for value in results[0].floats()? {
        println!("{value}");
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 4 {
        eprintln!("usage: {} model.gya rows columns", arguments[0]);
        std::process::exit(2);
    }
    if let Err(error) = run(&arguments[1], &arguments[2], &arguments[3]) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
