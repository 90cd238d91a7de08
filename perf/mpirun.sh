#!/bin/sh
# Runs a perf program under mpirun on this one machine: `sh perf/mpirun.sh -np 8 build/perf/mk_gemm_ar_perf --nodes 2`.
# The variables are Open MPI's and only say what a single machine needs: more processes than cores, as root too, and no
# network.  A variable that is set already stays.  Other MPIs ignore them.  Clusters use their own mpirun directly.
set -eu

# setDefault NAME VALUE
setDefault() { eval "export $1=\"\${$1:-$2}\""; }

setDefault OMPI_ALLOW_RUN_AS_ROOT 1
setDefault OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
setDefault OMPI_MCA_rmaps_base_oversubscribe 1
setDefault OMPI_MCA_btl self,vader
setDefault OMPI_MCA_pml ob1
setDefault OMPI_MCA_btl_vader_single_copy_mechanism none # the other ways need rights that containers lack
setDefault OMPI_MCA_oob_tcp_if_include lo
# Two ranks would get one core each, and a rank that spins on its stream would keep it from its proxy.
setDefault OMPI_MCA_hwloc_base_binding_policy none
# Open MPI looks for a remote shell even if every process is local.
if ! command -v ssh >/dev/null 2>&1 && ! command -v rsh >/dev/null 2>&1; then
  setDefault OMPI_MCA_plm isolated
fi
exec mpirun "$@"
