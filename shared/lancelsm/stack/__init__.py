"""What a deployment on AWS adds: functions' edge, queue, schedule, bill, checks. Results as documents."""
