-- OLCF's bins: the more nodes, the longer a job of `batch` may run. sbatch then says what Slurm says of any limit of time.
local BINS = { { nodes = 184, minutes = 720 }, { nodes = 92, minutes = 360 }, { nodes = 1, minutes = 120 } }

function slurm_job_submit(job, partitions, uid)
  if job.account == nil then
    return slurm.ESLURM_INVALID_ACCOUNT
  end
  if job.time_limit == slurm.NO_VAL then
    return slurm.ESLURM_MISSING_TIME_LIMIT
  end
  if job.partition == nil or job.partition == "batch" then
    local nodes = job.min_nodes ~= slurm.NO_VAL and job.min_nodes or 1
    for _, bin in ipairs(BINS) do
      if nodes >= bin.nodes then
        if job.time_limit > bin.minutes then
          return slurm.ESLURM_INVALID_TIME_LIMIT
        end
        break
      end
    end
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
