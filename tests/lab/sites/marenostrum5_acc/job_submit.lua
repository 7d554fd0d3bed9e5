-- Public scripts for MareNostrum 5 ask for 20 CPUs with each GPU, without exception. The refusal and its words are ours.
local CPUS_PER_GPU = 20

function slurm_job_submit(job, partitions, uid)
  local gpus = tonumber(string.match(job.gres or "", "gpu[:%w]-:?(%d+)$"))
  local tasks = job.ntasks_per_node ~= slurm.NO_VAL16 and job.ntasks_per_node or 1
  local cpus = job.cpus_per_task ~= slurm.NO_VAL16 and job.cpus_per_task * tasks or tasks
  if gpus and gpus <= 4 and cpus < gpus * CPUS_PER_GPU then
    slurm.log_user("a job needs %d CPUs for each GPU: %d GPUs and %d CPUs in a node", CPUS_PER_GPU, gpus, cpus)
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
