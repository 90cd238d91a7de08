# shellcheck shell=sh
# Sourced by demo.sh and gpu.sh: names cuBLAS and NCCL to the perf programs where the loader does not find them by itself,
# because they belong to a CUDA toolkit or to Python packages.  What is nowhere stays unset; the programs then say so.

# find_library VARIABLE NAME...: the first that exists in one of these places
find_library() {
  library_variable=$1
  shift
  eval "[ -z \"\${$library_variable:-}\" ]" || return 0
  for library_name in "$@"; do
    if ldconfig -p 2>/dev/null | grep -q "[[:space:]]$library_name "; then return 0; fi
    for library_path in /usr/local/cuda/lib64/"$library_name" $(python_libraries "$library_name"); do
      if [ -f "$library_path" ]; then
        export "$library_variable=$library_path"
        return 0
      fi
    done
  done
}

python_libraries() {
  python3 - "$1" 2>/dev/null <<'END'
import glob, sys
for folder in sys.path:
    for path in glob.glob(f"{folder}/nvidia/*/lib/{sys.argv[1]}"):
        print(path)
END
}

gpu_count() { nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true; }

find_library CUBLAS_LIBRARY libcublas.so.13 libcublas.so.12
find_library NCCL_LIBRARY libnccl.so.2
