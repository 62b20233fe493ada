@echo off
rem "course ..." in the folder of the course: the command of the environment in .venv, or of the one that is active.
if exist "%~dp0.venv\Scripts\course.exe" (
  "%~dp0.venv\Scripts\course.exe" %*
) else (
  python -P -m coursework.cli %*
)
