-- NERSC finds the partition from constraint and QOS. What fits no rule is refused in the words of NERSC's pages on job errors.
local function no_policy()
  slurm.log_user("Job request does not match any supported policy.")
  return slurm.ERROR
end

function slurm_job_submit(job, partitions, uid)
  local features = "&" .. (job.features or "") .. "&"
  local gpus = job.gres ~= nil or job.tres_per_job ~= nil or job.tres_per_task ~= nil
  if job.features == nil or job.partition ~= nil then
    return no_policy()
  end
  if string.find(features, "&cpu&", 1, true) then
    if gpus then
      return no_policy()
    end
    job.partition = "regular_milan_ss11"
  elseif string.find(features, "&gpu&", 1, true) then
    job.partition = job.qos == "shared" and "shared_gpu_ss11" or "gpu_ss11"
  else
    return no_policy()
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
