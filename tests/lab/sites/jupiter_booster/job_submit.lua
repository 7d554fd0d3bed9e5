-- JSC's submit filter, as far as users' pages quote it: a job without an account is refused in these words.
function slurm_job_submit(job, partitions, uid)
  if job.account == nil then
    slurm.log_user("job_submit_filter: please specify the job's account")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
