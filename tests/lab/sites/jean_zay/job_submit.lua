-- IDRIS: the constraint says what kind of job it is (v100 without one, whatever the partition), and the account has to be of that kind.
local PARTITIONS = { v100 = "gpu_p13", a100 = "gpu_p5", h100 = "gpu_p6" }

function slurm_job_submit(job, partitions, uid)
  if job.account == nil then
    return slurm.ESLURM_INVALID_ACCOUNT
  end
  local kind = string.match(job.features or "v100", "^[vah]100") or "v100"
  local suffix = string.match(job.account, "@(%w+)$")
  if suffix ~= nil and suffix ~= kind then
    slurm.log_user("IDRIS: Account %s ----- Job type %s", job.account, kind)
    return slurm.ESLURM_INVALID_ACCOUNT
  end
  if job.partition == nil then
    job.partition = PARTITIONS[kind]
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
