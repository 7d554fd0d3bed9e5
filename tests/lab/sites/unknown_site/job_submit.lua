-- Words after those of several sites; one refusal at a time, as a policy script returns at the first.
local function refuse(words)
  for _, line in ipairs(words) do
    slurm.log_user(line)
  end
  return slurm.ERROR
end

function slurm_job_submit(job, partitions, uid)
  local gres = job.tres_per_node or job.gres or ""
  if string.find(gres, "gpu") and not string.find(gres, "gpu:%a") then
    return refuse({ "*** Jobs on this cluster must name the GPU type. ***",
      "Please use --gres=gpu:a100:N (N = 1 to 4)" })
  end
  if job.requeue == 1 then
    return refuse({ "Requeue is not permitted on this cluster: submit with --no-requeue" })
  end
  if job.account == nil then
    return refuse({ "Please specify the project that pays for this job: --account=<project>" })
  end
  if job.time_limit == 4294967294 then
    return refuse({ "No time limit given. Use --time=HH:MM:SS, at most 24:00:00." })
  end
  if job.comment ~= nil and string.find(job.comment, "moon") then
    return refuse({ "The moon is in the wrong phase for accounts and partitions.", "Come back on Thursday." })
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
